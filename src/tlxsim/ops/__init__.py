"""Operations of the IR, one module per theme; importing the package registers all of them."""

from . import (  # noqa: F401
    arith,
    atomics,
    casts,
    control,
    copies,
    descriptors,
    dot,
    local,
    math,
    mma,
    pointers,
    ptx,
    reduce,
    sync,
    tensor,
    tma,
)
