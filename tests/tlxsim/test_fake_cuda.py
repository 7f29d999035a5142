"""Code that asks for CUDA on the CPU: where tensors stand, what is copied, what `torch.cuda` says, and that it ends."""

import threading

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
import triton.testing

import tlxsim
from tlxsim.fake_cuda import cuda_on_cpu

CUDA = torch.device("cuda", 0)


@triton.jit
def double(x_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at))


@pytest.fixture
def cuda():
    with cuda_on_cpu("sm_90"):
        yield


def run_double(x):
    with tlxsim.simulate("sm_90", schedules=1, budgets=False):
        double[(1,)](x, N=4)


ON_CUDA = {
    "name": lambda: torch.ones(4, device="cuda"),
    "index": lambda: torch.ones(4, device="cuda:0"),
    "number": lambda: torch.ones(4, device=0),
    "device": lambda: torch.ones(4, device=torch.device("cuda")),
    "pinned": lambda: torch.ones(4, pin_memory=True).pin_memory().cuda(0, non_blocking=True),
    "cuda": lambda: torch.ones(4).cuda(),
    "to": lambda: torch.ones(4).to("cuda"),
    "to number": lambda: torch.ones(4).to(0),
    "to with a dtype": lambda: torch.ones(4).to(CUDA, torch.bfloat16),
    "to keyword": lambda: torch.ones(4).to(device="cuda"),
    "to as another": lambda: torch.ones(4).to(torch.zeros(0, device="cuda")),
    "array": lambda: torch.from_numpy(np.ones(4)).cuda(),
    "like": lambda: torch.ones_like(torch.empty(4, device="cuda")),
    "like a CPU tensor": lambda: torch.ones_like(torch.empty(4), device="cuda"),
    "new": lambda: torch.ones(4).new_ones(4, device="cuda"),
    "sum": lambda: torch.zeros(4, device="cuda") + 1,
    "list": lambda: torch.cat([torch.ones(2, device="cuda"), torch.ones(2, device="cuda")]),
    "result of several": lambda: torch.ones(4, 2, device="cuda").max(1)[0],
    "view": lambda: torch.ones(2, 4, device="cuda")[1],
    "module": lambda: torch.nn.Linear(4, 1, bias=False).cuda().weight[0].detach() * 0 + 1,
    "module to": lambda: torch.nn.Linear(4, 1, bias=False).to("cuda").weight[0].detach() * 0 + 1,
    "module number": lambda: torch.nn.Linear(4, 1, bias=False).to(0).weight[0].detach() * 0 + 1,
}
ON_CPU = {
    "default": lambda: torch.ones(4),
    "name": lambda: torch.ones(4, device="cpu"),
    "array": lambda: torch.from_numpy(np.ones(4)),
    "cpu": lambda: torch.ones(4, device="cuda").cpu(),
    "to": lambda: torch.ones(4, device="cuda").to("cpu"),
    "to with a dtype": lambda: torch.ones(4, device="cuda").to("cpu", torch.float64),
    "sum": lambda: torch.zeros(4) + 1,
    "cast": lambda: torch.ones(4).to(torch.float64),
    "module": lambda: torch.nn.Linear(4, 1, bias=False).cuda().cpu().weight[0].detach() * 0 + 1,
}


@pytest.mark.parametrize("make", ON_CUDA.values(), ids=ON_CUDA)
def test_tensors_of_the_gpu(make, cuda):
    x = make()
    assert (x.device, x.is_cuda, x.is_cpu, x.get_device()) == (CUDA, True, False, 0)
    assert torch.equal(x.float(), torch.ones(4))


@pytest.mark.parametrize("make", ON_CPU.values(), ids=ON_CPU)
def test_tensors_of_the_cpu(make, cuda):
    x = make()
    assert (x.device, x.is_cuda, x.is_cpu, x.get_device()) == (torch.device("cpu"), False, True, -1)
    assert torch.equal(x.float(), torch.ones(4))


def test_other_devices_stay_what_they_are(cuda):
    x = torch.empty(4, device="meta")
    assert (x.device.type, x.is_cuda, x.is_cpu) == ("meta", False, False)
    assert [torch.device(0), torch.device("cuda", 0), torch.device("cpu").type] == [CUDA, CUDA, "cpu"]


@pytest.mark.parametrize("move", [lambda x: x.cuda(), lambda x: x.to("cuda"), lambda x: x.to(0), lambda x: x.to(CUDA)])
def test_a_kernel_in_place_spares_the_original(move, cuda):
    original = torch.ones(4)
    moved = move(original)
    run_double(moved)
    assert (original == 1).all()
    back = moved.cpu()
    run_double(moved)
    assert (back == 2).all()
    assert (moved == 4).all()


@pytest.mark.parametrize("move", [lambda x: x.cuda(), lambda x: x.to("cuda"), lambda x: x.to(torch.float32)])
def test_what_is_there_already_is_not_copied(move, cuda):
    x = torch.ones(4, device="cuda")
    run_double(move(x))
    assert (x == 2).all()
    y = torch.ones(4)
    assert y.cpu() is y


def test_a_default_device(cuda):
    torch.set_default_device("cuda")
    assert torch.ones(4).is_cuda
    assert torch.get_default_device().type == "cuda"
    torch.set_default_device(None)
    assert not torch.ones(4).is_cuda
    with torch.device("cuda"):
        assert torch.ones(4).is_cuda


class Doubled(torch.autograd.Function):
    """Twice x, whose gradient is made by a kernel in memory that is asked for by name."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        assert gradient.is_cuda
        out = torch.empty(4, device="cuda").copy_(gradient)
        run_double(out)
        return out


def test_backward_of_a_function(cuda):
    x = torch.ones(4, device="cuda", requires_grad=True)
    Doubled.apply(x).sum().backward()
    assert x.grad.is_cuda
    assert torch.equal(x.grad, torch.full((4,), 2.0))
    (gradient,) = torch.autograd.grad(Doubled.apply(x).sum(), x)
    assert torch.equal(gradient, x.grad)
    y = torch.ones(4, requires_grad=True)
    (y * 2).sum().backward()
    assert not y.grad.is_cuda


def test_operators_choose_their_kernel(cuda):
    library = torch.library.Library("tlxsim_test", "FRAGMENT")
    library.define("where(Tensor x) -> Tensor")
    library.define("anywhere(Tensor x) -> Tensor")
    library.impl("where", lambda x: x + torch.ones(4, device="cuda"), "CUDA")
    with pytest.raises(NotImplementedError, match="where has no kernel for cpu tensors"):
        torch.ops.tlxsim_test.where(torch.ones(4))
    library.impl("where", lambda x: x - 1, "CPU")
    library.impl("anywhere", lambda x: torch.full((4,), float(x.is_cuda), device="cuda"), "CompositeExplicitAutograd")
    ops = torch.ops.tlxsim_test
    assert [ops.where(torch.ones(4))[0], ops.where(torch.ones(4, device="cuda"))[0]] == [0, 2]
    assert [ops.anywhere(torch.ones(4))[0], ops.anywhere(torch.ones(4, device="cuda"))[0]] == [0, 1]


def test_an_operator_of_cuda_alone(cuda):
    @torch.library.custom_op("tlxsim_test::twice", mutates_args=(), device_types="cuda")
    def twice(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        run_double(out)
        return out

    assert torch.equal(twice(torch.ones(4, device="cuda")), torch.full((4,), 2.0))


def test_threads_are_on_the_cpu_too(cuda):
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(4, device="cuda").is_cuda))
    thread.start()
    thread.join()
    assert found == [True]


def test_a_step_of_training(cuda):
    layer = torch.nn.Linear(4, 2).cuda()
    optimizer = torch.optim.AdamW(layer.parameters())
    before = layer.weight.detach().cpu()
    layer(torch.ones(3, 4, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    assert layer.weight.is_cuda
    assert not torch.equal(before, layer.weight.cpu())
    compiled = torch.compile(layer, fullgraph=True)
    assert compiled is layer
    assert torch.compile(fullgraph=True)(run_double) is run_double


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_what_torch_says_of_the_gpu(arch):
    with cuda_on_cpu(arch, multiprocessors=7):
        capability = divmod(int(arch[3:]), 10)
        assert torch.cuda.is_available()
        assert torch.accelerator.is_available()
        assert torch.cuda.get_device_capability() == torch.cuda.get_device_capability("cuda:0") == capability
        properties = torch.cuda.get_device_properties(0)
        assert (properties.major, properties.minor, properties.multi_processor_count) == (*capability, 7)
        assert torch.cuda.device_count() == torch.accelerator.device_count() == 1
        assert torch.accelerator.current_accelerator().type == "cuda"
        assert torch.cuda.current_stream() is torch.cuda.default_stream()
        assert not torch.cuda.current_stream().is_capturing()
        with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            end.record()
            torch.cuda.synchronize()
            assert start.elapsed_time(end) > 0
        with torch.random.fork_rng(devices=[0]):
            torch.cuda.manual_seed(1)


def test_a_benchmark_runs_once(cuda):
    runs = []
    assert isinstance(triton.testing.do_bench(lambda: runs.append(1)), float)
    assert len(runs) == 1


def test_all_of_it_ends():
    owners = [torch, torch.cuda, torch.accelerator, torch.version, torch.nn.Module, torch.library.Library, threading.Thread,
              triton.testing, torch.autograd]  # fmt: skip
    torch.ones(1).backward  # noqa: B018  what torch imports when it is first used
    before = [dict(vars(owner)) for owner in owners]
    made = []

    def fail():
        with cuda_on_cpu("sm_90"):
            torch.set_default_device("cuda")
            made.append(torch.ones(4))
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    torch.set_default_device(None)
    after = [dict(vars(owner)) for owner in owners]
    for old, new in zip(before, after, strict=True):
        assert {name for name in old | new if old.get(name) is not new.get(name)} <= {"_GLOBAL_DEVICE_CONTEXT"}
    assert (made[0].device.type, made[0].is_cuda) == ("cpu", False)
    assert not torch.ones(1).is_cuda


def test_an_unknown_architecture_changes_nothing():
    with pytest.raises(ValueError, match="arch must be one of sm_80"), cuda_on_cpu("sm_99"):
        pass
    assert not torch.ones(1).is_cuda
