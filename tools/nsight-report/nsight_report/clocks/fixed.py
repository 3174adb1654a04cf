# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's clock arithmetic on int64 arrays, exact: no float, no overflow.

A line is ``ns = anchor_ns + ((tsc - anchor_tsc) * mult + anchor_frac) >> shift`` (kernel:
timekeeping_cycles_to_ns() in kernel/time/timekeeping.c, vdso_calc_ns() in lib/vdso). The product
needs up to 96 bits; it is taken in two halves. Preconditions, which ``segments.check`` enforces:
0 < mult < 2**32, 0 <= shift <= 32, 0 <= frac < 2**shift, and results inside int64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

_LOW = np.int64(0xFFFFFFFF)


def _fits(a: I64, b: I64) -> bool:
    """Whether all products, plus a fraction, stay far within int64: the usual, faster case."""
    if not len(a):
        return True
    return max(int(a.max()), -int(a.min())) * int(b.max()) < 1 << 62


def scale(delta: I64, mult: I64, frac: I64, shift: I64) -> I64:
    """``(delta * mult + frac) >> shift``, rounding down, also for negative ``delta``.

    >>> scale(np.array([3, -3]), np.array([1, 1]), np.array([0, 0]), np.array([1, 1])).tolist()
    [1, -2]
    """
    if _fits(delta, mult):
        return (delta * mult + frac) >> shift
    # delta = high * 2**32 + low with 0 <= low < 2**32, so only `high` carries the sign.
    high = delta >> 32
    low = (delta & _LOW).astype(np.uint64)
    below = (low * mult.astype(np.uint64) + frac.astype(np.uint64)) >> shift.astype(np.uint64)
    return ((high * mult) << (32 - shift)) + below.astype(np.int64)


def unscale(ns: I64, mult: I64, frac: I64, shift: I64) -> I64:
    """The smallest ``delta`` with ``scale(delta, ...) >= ns``: the inverse of ``scale``.

    That is ``ceil(((ns << shift) - frac) / mult)``.
    """
    if _fits(ns, np.left_shift(1, shift)):
        return -((frac - (ns << shift)) // mult)
    whole, rest = np.divmod(ns, mult)  # 0 <= rest < mult < 2**32
    m = mult.astype(np.uint64)
    top = rest.astype(np.uint64) << shift.astype(np.uint64)
    f = frac.astype(np.uint64)
    up = (top - np.minimum(top, f) + m - np.uint64(1)) // m  # ceil, where top >= frac
    down = (f - np.minimum(top, f)) // m  # -ceil of the negative quotient elsewhere
    return (whole << shift) + np.where(top >= f, up.astype(np.int64), -down.astype(np.int64))
