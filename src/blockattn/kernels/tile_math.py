"""The arithmetic between scores in registers and probabilities in registers, and its gradient.

Every architecture and both directions share it. All values are fp32; a tile meets all of its keys at once, so there is no
running maximum and no correction.
"""

import triton
import triton.language as tl


@triton.jit
def exponentials(s, queries, keys, length, scale, CAUSAL: tl.constexpr, LOG2_E: tl.constexpr = 1.4426950408889634):
    """exp(scale · s − row maximum) `[M, N]`, the row maximum (in base 2) and the row sum, over the keys a query sees.

    A query sees the keys inside the tile and, when causal, none after itself. Queries past the length see them too: their
    rows are finite and are never stored.
    """
    visible = (keys < length)[None, :]
    if CAUSAL:
        visible = visible & (keys[None, :] <= queries[:, None])
    s = tl.where(visible, s * (scale * LOG2_E), float("-inf"))
    row_max = tl.max(s, 1)
    e = tl.exp2(s - row_max[:, None])
    return e, row_max, tl.sum(e, 1)


@triton.jit
def logsumexp(row_max, row_sum, LN_2: tl.constexpr = 0.6931471805599453):
    """Natural logarithm of the sum of exp(scale · s), from the base-2 maximum and the row sum."""
    return (row_max + tl.log2(row_sum)) * LN_2


@triton.jit
def score_gradient(p, dp, dlse, HAS_DLSE: tl.constexpr):
    """Gradient of scale · s: p · (dp − delta + dlse) with delta = Σ p · dp, the softmax's own gradient."""
    slope = dp - tl.sum(p * dp, 1)[:, None]
    if HAS_DLSE:
        slope += dlse[:, None]
    return p * slope


@triton.jit
def scales(scale, dtype: tl.constexpr):
    """What ds is multiplied by before it is rounded to a dtype, and what dq and dk are: together the scale.

    ds has fewer values, so it is scaled; but float16 would lose small ones, and there dq and dk are.
    """
    if dtype == tl.float16:
        return 1.0, scale
    return scale, 1.0
