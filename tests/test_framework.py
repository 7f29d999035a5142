"""torch.library, torch.compile, the flop counter, and what importing the package does."""

import subprocess
import sys
import textwrap

import pytest
import torch

from backends import BACKENDS, HAS_GPU
from blockattn import block_attention

DEVICE = "cuda" if HAS_GPU else "cpu"


def python(code: str, **environment: str) -> str:
    """Run code in a process of its own and return what it prints."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_importing_needs_no_gpu_and_no_triton():
    out = python(
        """
        import sys, torch
        before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
        loaded = set(sys.modules)
        import blockattn
        assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
        new = set(sys.modules) - loaded
        print([m for m in new if m.split(".")[0] in ("triton", "tlx", "triton_utlx", "_utlx_autoregister")])
        print("torch._dynamo" in sys.modules, torch.cuda.is_initialized())
        q = torch.randn(10, 1, 16)
        print(blockattn.block_attention(q, q, q, torch.tensor([0, 10])).shape)
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    assert out.splitlines() == ["[]", "False False", "torch.Size([10, 1, 16])"]


def samples(backend):
    def qkv(rows, dtype=torch.float32, grad=True):
        return [torch.randn(rows, h, 16, dtype=dtype, device=DEVICE, requires_grad=grad) for h in (4, 2, 2)]

    for rows, bounds, lengths, grad in (
        (100, (3, 50, 90), None, True), (100, (0, 100), (70,), False), (0, (0, 0), None, True), (1, (0, 1), None, True),
    ):  # fmt: skip
        offsets = torch.tensor(bounds, device=DEVICE)
        lengths = None if lengths is None else torch.tensor(lengths, device=DEVICE)
        tiles = torch.ops.blockattn.build_tiles(offsets, lengths, rows, 32, 5, False)
        cos, sin = torch.randn(2, 99, 4, device=DEVICE).unbind()
        starts = torch.arange(len(bounds) - 1, device=DEVICE)
        for return_lse in (False, True):
            yield "build_tiles", (offsets, lengths, rows, 32, 5, True)
            rotary = (cos, sin, starts) if return_lse else (None, None, None)
            options = (4, 2, 32, return_lse, 0.3, return_lse, False, return_lse, False, False, backend)
            yield "attention", (*qkv(rows, grad=grad), tiles, *rotary, *options)
            packed = torch.randn(rows, 8 * 16, device=DEVICE, requires_grad=grad)
            yield "attention", (packed, None, None, tiles, *rotary, *options)
            grad_lse = torch.randn(rows, 4, device=DEVICE) if return_lse else None
            q, k, v = qkv(rows, grad=False)
            yield "attention_backward", (torch.randn_like(q), grad_lse, q, k, v, tiles, *rotary, *options)
            gradients = torch.randn_like(q), grad_lse
            yield "attention_backward", (*gradients, packed.detach(), None, None, tiles, *rotary, *options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_opcheck(backend):
    for name, arguments in samples(backend):
        results = torch.library.opcheck(getattr(torch.ops.blockattn, name).default, arguments)
        assert set(results.values()) == {"SUCCESS"}, (name, results)


def test_no_graph_break_as_the_first_call_of_a_process():
    """offsets come from a cumsum inside the graph; T and B change from call to call without a new compilation each time."""
    python(
        f"""
        import torch, blockattn
        from torch._dynamo.testing import CompileCounterWithBackend

        def model(x, w, lengths):
            offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
            q, k, v = (x @ w).unflatten(1, (3, 2, 16)).unbind(1)
            table = blockattn.TileTable.from_offsets(offsets, total_rows=x.shape[0], block_size=32)
            o, lse = blockattn.block_attention(q, k, v, table, return_lse=True)
            o = blockattn.block_attention(o, k, v, offsets, block_size=32, shift=16, causal=True)
            rotary = blockattn.RotaryTable(*angles[:, : x.shape[0]], per_token=True)
            o = o + blockattn.block_attention_packed(x @ w, table, num_heads=2, rotary=rotary)
            return o.square().mean() + lse.mean()

        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
        torch.manual_seed(0)
        w = torch.randn(32, 96, device="{DEVICE}", requires_grad=True)
        angles = torch.randn(2, 400, 4, device="{DEVICE}")
        for sizes in ((40, 7, 64), (3, 90), (1, 2, 3, 4), (64,), *[(t, 5) for t in range(2, 20)]):
            lengths = torch.tensor(sizes, device="{DEVICE}")
            x = torch.randn(sum(sizes), 32, device="{DEVICE}", requires_grad=True)
            got = torch.autograd.grad(compiled(x, w, lengths), (x, w))
            want = torch.autograd.grad(model(x, w, lengths), (x, w))
            for a, b in zip(got, want):
                torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert counter.frame_count <= 2, counter.frame_count
        """
    )


def test_any_scale_compiles():
    """A float argument, an attribute, an expression of a dynamic shape: none breaks the graph."""
    python(
        """
        import torch, blockattn

        class Layer(torch.nn.Module):
            scale = 0.3

            def forward(self, q, offsets, scale):
                o = blockattn.block_attention(q, q, q, offsets, scale=scale)
                o = blockattn.block_attention(o, q, q, offsets, scale=self.scale)
                return blockattn.block_attention(o, q, q, offsets, scale=q.shape[-1] ** -0.5)

        layer = Layer()
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for rows, scale in ((10, 0.1), (20, 0.7), (30, 2)):
            q, offsets = torch.randn(rows, 1, 16), torch.tensor([0, rows])
            torch.testing.assert_close(compiled(q, offsets, scale), layer(q, offsets, scale))
        """
    )


def test_wrong_offsets_raise_inside_a_compiled_graph():
    python(
        """
        import torch, blockattn

        @torch.compile(fullgraph=True, backend="aot_eager")
        def model(q, offsets):
            return blockattn.block_attention(q, q, q, offsets, check_offsets=True)

        q = torch.randn(10, 1, 16)
        try:
            model(q, torch.tensor([0, 11]))
        except ValueError as error:
            assert "offsets[1] must be within 0 and the 10 rows of q, got 11" in str(error), error
        else:
            raise SystemExit("no error")
        """
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_flops_are_counted(backend):
    from torch.utils.flop_counter import FlopCounterMode

    rows, heads, head_dim, block = 100, 4, 16, 32
    q = torch.randn(rows, heads, head_dim, device=DEVICE, requires_grad=True)
    offsets = torch.tensor([0, 100], device=DEVICE)
    with FlopCounterMode(display=False) as counter:
        o = block_attention(q, q, q, offsets, block_size=block, backend=backend)
    forward = 2 * 2 * rows * block * heads * head_dim
    assert counter.get_total_flops() == forward
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
    assert counter.get_total_flops() == forward * 5 // 2


def test_flops_are_counted_when_the_counter_comes_first():
    python(
        """
        import torch, blockattn
        from torch.utils.flop_counter import FlopCounterMode
        q = torch.randn(64, 1, 16)
        with FlopCounterMode(display=False) as counter:
            blockattn.block_attention(q, q, q, torch.tensor([0, 64]))
        assert counter.get_total_flops() == 4 * 64 * 64 * 16, counter.get_total_flops()
        """
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_activation_checkpointing_and_saved_memory(backend):
    """Checkpointing recomputes the op; without it q, k, v and the table are all that is saved."""
    q, k, v = (torch.randn(100, 2, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    offsets = torch.tensor([0, 100], device=DEVICE)
    saved = []

    def pack(x):
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        o, lse = block_attention(q, k, v, offsets, return_lse=True, backend=backend)
    storages = {x.untyped_storage().data_ptr(): x for x in saved}
    for x in (q, k, v):
        storages.pop(x.untyped_storage().data_ptr())
    assert all(x.dtype == torch.int64 or x.numel() <= lse.numel() for x in storages.values())

    want = torch.autograd.grad((o, lse), (q, k, v), (torch.ones_like(o), torch.ones_like(lse)))
    o, lse = torch.utils.checkpoint.checkpoint(
        lambda *x: block_attention(*x, offsets, return_lse=True, backend=backend), q, k, v, use_reentrant=False
    )
    got = torch.autograd.grad((o, lse), (q, k, v), (torch.ones_like(o), torch.ones_like(lse)))
    assert all(a.equal(b) for a, b in zip(got, want, strict=True))


@pytest.mark.gpu
def test_a_cuda_graph_captures_the_table_and_both_directions():
    q, k, v = (torch.randn(300, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    offsets = torch.tensor([0, 100, 300], device="cuda")

    def step():
        o = block_attention(q, k, v, offsets)
        return o, *torch.autograd.grad(o.float().square().sum(), (q, k, v))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    offsets.copy_(torch.tensor([0, 37, 290]))
    graph.replay()
    for got, want in zip(captured, step(), strict=True):
        assert got.equal(want)


@pytest.mark.gpu
def test_no_host_synchronisation():
    q = torch.randn(300, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    offsets = torch.tensor([0, 100, 300], device="cuda")
    block_attention(q, q, q, offsets).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for backend in BACKENDS:
            block_attention(q, q, q, offsets, backend=backend).backward(q.detach())
    finally:
        torch.cuda.set_sync_debug_mode("default")
