"""From a launch to IR: bind arguments as Triton's JIT does, compile in a forked child, parse.

Levels of the IR: "ttir", the kernel as written with its functions inlined, and "fenced", what the compiler makes of it until
it would turn to LLVM. Results are kept for the process by everything that they depend on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import child, stack
from .findings import Unsupported
from .ir import Module, parse

LEVELS = ("ttir", "fenced")


class FrontendError(RuntimeError):
    """Triton's frontend or compiler refuses a kernel, or dies on it.

    It is also of the class of the exception that they raised, so that a test which expects a `triton.CompilationError` gets
    one; the exceptions behind that one are its `__cause__`.
    """

    __str__ = RuntimeError.__str__  # Triton's own classes have others


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A kernel's IR for one launch.

    Args:
        module: the parsed IR.
        text: as the compiler printed it.
        num_warps: of the kernel outside of its tasks.
        options: the backend's, all filled in.
        arguments: name and value of each argument of the entry function, in order; of a host tensor descriptor the
            descriptor, then its shape and its strides.
        seconds: that compiling and parsing took; about 0 if it was known.
    """

    module: Module
    text: str
    num_warps: int
    options: Any
    arguments: list[tuple[str, Any]]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Source:
    """A launch as the compiler takes it."""

    fn: Any
    backend: Any
    target: Any
    arch: str
    options: Any
    signature: dict[str, Any]
    constants: dict[tuple, Any]
    attributes: dict[tuple, Any]
    key: tuple

    def ast(self) -> Any:
        """Triton's own description of it."""
        from triton.compiler import ASTSource

        return ASTSource(self.fn, self.signature, self.constants, self.attributes)


@dataclasses.dataclass(frozen=True)
class Ir:
    """What a child gives back, parsed; `default_registers` is the `registers=` of a default task, 0 without one."""

    module: Module
    text: str
    default_registers: int


_KNOWN: dict[tuple, Ir] = {}  # the latest MOST_KNOWN
MOST_KNOWN = 256


class Pending:
    """The IR of a source at a level, being made in a child; `result()` waits for it."""

    def __init__(self, source: Source, level: str):
        self._source, self._level = source, level
        self._key = (*source.key, level)
        self._ir = _KNOWN.get(self._key)
        self._child = None if self._ir else child.Child(lambda: _made(source, level))

    def result(self, echo: bool = False) -> Ir:
        """Raises as `compile_ir` does; `echo` prints what the kernel prints while it is compiled."""
        if self._child is None:
            return self._ir
        if self._key not in _KNOWN:
            try:
                with explained(self._source, self._level):
                    text, default_registers = self._child.result()
            finally:
                if echo:
                    print(self._child.stdout, end="")
            if left_out := stack.current().left_out(self._child.stderr):
                raise Unsupported(f"{self._source.fn.__name__}: this Triton leaves out {', '.join(left_out)}")
            if len(_KNOWN) >= MOST_KNOWN:
                _KNOWN.pop(next(iter(_KNOWN)))
            _KNOWN[self._key] = Ir(parse(text), text, default_registers)
        return _KNOWN[self._key]


def unwrap(kernel: Any) -> Any:
    """The JITFunction inside of autotune, heuristics and the like."""
    while hasattr(kernel, "fn") and not hasattr(kernel, "cache_key"):
        kernel = kernel.fn
    return kernel


def bind(fn: Any, args: tuple, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A launch's arguments by parameter, defaults filled in, and its options (num_warps and the like)."""
    from triton import knobs

    options = {name: value for name, value in kwargs.items() if name not in fn.signature.parameters}
    bound = fn.signature.bind(*args, **{name: value for name, value in kwargs.items() if name not in options})
    bound.apply_defaults()
    options["debug"] = options.get("debug", fn.debug) or knobs.runtime.debug
    clusters = options.pop("ctas_per_cga", None)  # the TLX way to say num_ctas
    if clusters is not None and tuple(clusters) != (1, 1, 1):
        options["num_ctas"] = clusters[0] * clusters[1] * clusters[2]
    return dict(bound.arguments), options


def compile_ir(fn: Any, bound: Mapping[str, Any], options: Mapping[str, Any], arch: str, level: str) -> Compiled:
    """The IR of a launch.

    Args:
        fn: the JITFunction; bound and options as `bind` gives them.
        arch: like "sm_90"; level: one of `LEVELS`.

    Raises:
        FrontendError: the compiler refuses the kernel or dies on it.
        Unsupported: the launch asks for clusters.
        ParseError: the IR is not understood.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    begin = time.perf_counter()
    source = specialize(fn, bound, options, arch)
    ir = Pending(source, level).result(echo=True)
    if source.options.num_ctas != 1:
        raise Unsupported(f"{fn.__name__} is launched with num_ctas={source.options.num_ctas}: clusters are not modelled")
    arguments = _arguments(source, bound, ir.module)
    if len(arguments) != len(ir.module.entry.args):
        raise FrontendError(f"{fn.__name__}: {len(arguments)} arguments for the {len(ir.module.entry.args)} of its IR")
    return Compiled(ir.module, ir.text, source.options.num_warps, source.options, arguments, time.perf_counter() - begin)


def specialize(fn: Any, bound: Mapping[str, Any], options: Mapping[str, Any], arch: str) -> Source:
    """What Triton's JIT would compile for these arguments."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import compute_cache_key, create_function_from_signature

    if fn.is_gluon():
        raise Unsupported(f"{fn.__name__} is written in Gluon, which tlxsim does not compile yet")
    target = GPUTarget("cuda", stack.arch_number(arch), 32)
    backend = make_backend(target)
    call = inspect.BoundArguments(fn.signature, dict(bound))
    binder = create_function_from_signature(fn.signature, fn.params, backend)
    values, specialization, extra = binder(*call.args, **call.kwargs, **options)
    parsed, signature, constants, attributes = fn._pack_args(backend, dict(options), values, specialization, extra)
    described = compute_cache_key({}, specialization, sorted(extra.items()))
    key = (_cache_key(fn), fn.file_name, described, arch, stack.current().name)
    _check_globals(fn)
    return Source(fn, backend, target, arch, parsed, signature, constants, attributes, key)


@contextlib.contextmanager
def explained(source: Source, what: str) -> Iterator[None]:
    """A child's error inside becomes a FrontendError that names the kernel."""
    try:
        yield
    except child.ChildError as error:
        fn = source.fn
        where = f"{fn.__name__} at {fn.file_name}:{fn.starting_line_number} ({what}, {source.arch})"
        cause = None
        for text in reversed(error.causes):
            behind, cause = cause, FrontendError(text)
            cause.__cause__ = behind
        text = f"{where}: the compiler {_verb(error.message)}\n{error.stderr}".rstrip()
        raise _error_class(*error.kind)(text) from cause


class Launched:
    """What a launch returns: `asm`, `metadata` and all else of Triton's CompiledKernel, compiled when first asked for.

    Launching it, as hosts do that keep the compiled kernel, is a launch of the kernel once more.
    """

    function = packed_metadata = None  # what `run` takes of a kernel that is on a GPU

    def __init__(self, fn: Any, bound: Mapping[str, Any], options: Mapping[str, Any], arch: str):
        self._launch = (fn, dict(bound), dict(options), arch)
        self._kernel: Any = None

    def __getitem__(self, grid: Any) -> Callable:
        fn, _, options, _ = self._launch
        return lambda *args, stream=None: fn.run(*args, grid=grid, warmup=False, **options)

    def run(self, x: int, y: int, z: int, stream: Any, function: Any, metadata: Any, launch_metadata: Any, enter: Any,
            leave: Any, *args: Any) -> None:  # fmt: skip
        """As CompiledKernel.run is called: with the values of all parameters, constants included."""
        self[(x, y, z)](*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._kernel is None:
            source = specialize(*self._launch)
            with explained(source, "compiled"):
                child.run(lambda: _compiled(source) and None)  # leaves it in Triton's cache
            self._kernel = _compiled(source)
        if name in ("n_regs", "n_spills", "n_max_threads"):
            self._kernel._init_handles()
        return getattr(self._kernel, name)


def _compiled(source: Source) -> Any:
    import triton

    return triton.compile(source.ast(), target=source.target, options=source.options.__dict__)


def make_module(source: Source) -> Any:
    """The frontend's module for a launch, before any pass; in a child only."""
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    source.backend.load_dialects(context)
    implementation = source.backend.get_codegen_implementation(source.options)
    module = source.ast().make_ir(
        source.target, source.options, implementation, source.backend.get_module_map(), context
    )  # fmt: skip
    module.context = context
    return module


def _made(source: Source, level: str) -> tuple[str, int]:
    """In a child: the text of the IR, and the most registers that a default task asks for."""
    adapter = stack.current()
    with adapter.recording() as registers:
        module = make_module(source)
    if level == "fenced":
        module = adapter.to_fenced(module, source.backend, source.options)
    else:
        module = adapter.make_ttir(module, source.backend, source.options, source.target.arch)
        adapter.lower_aliases(module)
    return str(module), max(registers, default=0)


def _arguments(source: Source, bound: Mapping[str, Any], module: Module) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    decomposed = not any(kind.kind == "descriptor" for kind in module.entry.arg_types)
    for name, kind in source.signature.items():
        _flatten(name, kind, bound[name], decomposed, found)
    return found


def _flatten(name: str, kind: Any, value: Any, decomposed: bool, found: list[tuple[str, Any]]) -> None:
    """Add the entry function's arguments that one parameter becomes; constants become none."""
    if isinstance(kind, tuple):
        for number, (part, item) in enumerate(zip(kind, value, strict=True)):
            _flatten(f"{name}.{number}", part, item, decomposed, found)
    elif kind == "constexpr":
        return
    elif kind.startswith("tensordesc"):
        shape = [(f"{name}.shape.{n}", size) for n, size in enumerate(value.shape)]
        strides = [(f"{name}.stride.{n}", stride) for n, stride in enumerate(value.strides)]
        if decomposed:  # architectures without TMA take a descriptor apart
            flags = [(f"{name}.padding", value.padding == "nan"), (f"{name}.round", value.round_f32_to_tf32)]
            found += [(name, value.base), *shape, *strides, *flags, *shape, *strides]
        else:
            found += [(name, value), *shape, *strides]
    else:
        found.append((name, value))


def _cache_key(fn: Any) -> str:
    """A hash of the function's source and of all that it calls."""
    try:
        return fn.cache_key
    except RuntimeError as error:
        fn.hash = None  # Triton leaves a placeholder there, which the next call would take for the hash
        raise FrontendError(f"{fn.__name__} at {fn.file_name}:{fn.starting_line_number}: {error}") from error


def _check_globals(fn: Any) -> None:
    """Triton's own rule: a global that a kernel has been compiled with may not change."""
    for (name, _), (value, namespace) in fn.used_global_vals.items():
        if namespace.get(name) != value:
            now = namespace.get(name)
            raise RuntimeError(f"global {name} has changed since {fn.__name__} was compiled, from {value} to {now}")


@functools.cache
def _error_class(module: str = "", name: str = "") -> type[FrontendError]:
    """FrontendError, of an exception's class as well."""
    kind = getattr(sys.modules.get(module), name, FrontendError)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(FrontendError, kind):
        return FrontendError
    return type("FrontendError", (FrontendError, kind), dict(__module__=__name__, __doc__=FrontendError.__doc__))


def _verb(message: str) -> str:
    """ "refuses it: ..." of an exception, "died of SIGSEGV" as it stands."""
    return message if message.startswith(("died", "exited", "did not")) else f"refuses it: {message}"
