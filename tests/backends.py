"""The backends under test and the dtypes that each computes on this machine."""

import importlib.util

import torch

from blockattn.testing import Case

HAS_GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
HAS_TRITON = importlib.util.find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)

# Triton's interpreter multiplies bfloat16 as raw bits, so without a GPU it runs float16 and float32.
DTYPES = {
    "reference": (torch.float32, *HALF) + (() if HAS_GPU else (torch.float64,)),
    "torch": (torch.float32, *HALF) + (() if HAS_GPU else (torch.float64,)),
    "triton": (torch.float32, torch.float16) + ((torch.bfloat16,) if HAS_GPU else ()),
}
BACKENDS = ("torch", "triton") if HAS_TRITON else ("torch",)


def serves(backend: str, case: Case) -> bool:
    return case.dtype in DTYPES[backend]


def multiplies_in_tf32(backend: str) -> bool:
    """On a GPU Triton multiplies float32 in TF32, and so does torch, which conftest allows to."""
    return HAS_GPU
