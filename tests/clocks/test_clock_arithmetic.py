# SPDX-License-Identifier: GPL-2.0-only
"""The fixed-point arithmetic equals exact integer arithmetic where int64 or float64 would not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nsight_report.clocks import fixed

mults = st.integers(1, (1 << 32) - 1)
shifts = st.integers(0, 32)


def arrays(*values: int) -> list[np.ndarray]:
    return [np.array([v], np.int64) for v in values]


def test_product_beyond_64_bits_is_exact() -> None:
    # 2**62 cycles of half a ns: the product is 2**84, the result 2**61; one cycle more adds 0.5 ns
    delta, mult, frac, shift = arrays(2**62, 2**22, 0, 23)
    assert fixed.scale(delta, mult, frac, shift).tolist() == [2**61]
    assert fixed.scale(delta + 1, mult, frac, shift).tolist() == [2**61]
    assert fixed.scale(delta + 2, mult, frac, shift).tolist() == [2**61 + 1]


def test_the_fraction_carries_into_the_nanoseconds() -> None:
    # 3 cycles * 0.5 = 1.5 ns, and half a ns of fraction makes it 2
    delta, mult, shift = arrays(3, 1, 1)
    assert fixed.scale(delta, mult, np.array([0]), shift).tolist() == [1]
    assert fixed.scale(delta, mult, np.array([1]), shift).tolist() == [2]


def test_the_fraction_carries_beyond_64_bits_too() -> None:
    # (2**45 + 1) * 0.5 = 2**44 + 0.5, and half a ns of fraction makes the next whole one
    delta, mult, shift = arrays(2**45 + 1, 2**22, 23)
    assert fixed.scale(delta, mult, np.array([0]), shift).tolist() == [2**44]
    assert fixed.scale(delta, mult, np.array([1 << 22]), shift).tolist() == [2**44 + 1]


def test_the_inverse_beyond_64_bits_is_exact() -> None:
    # 2**45 ns << 23 is 2**68; at half a ns per cycle 2**46 cycles, one less with half a ns of fraction
    ns, mult, shift = arrays(2**45, 2**22, 23)
    assert fixed.unscale(ns, mult, np.array([0]), shift).tolist() == [2**46]
    assert fixed.unscale(ns, mult, np.array([1 << 22]), shift).tolist() == [2**46 - 1]
    assert fixed.unscale(-ns, mult, np.array([1 << 22]), shift).tolist() == [-(2**46) - 1]


@given(st.integers(-(2**60), 2**60), mults, shifts, st.data())
def test_scale_equals_python_integers(delta: int, mult: int, shift: int, data: st.DataObject) -> None:
    frac = data.draw(st.integers(0, (1 << shift) - 1))
    exact = (delta * mult + frac) >> shift
    if abs(exact) < 2**63 - 1:
        assert fixed.scale(*arrays(delta, mult, frac, shift)).tolist() == [exact]


@given(st.integers(-(2**60), 2**60), mults, shifts, st.data())
def test_unscale_gives_the_first_cycle_of_a_nanosecond(
    ns: int, mult: int, shift: int, data: st.DataObject
) -> None:
    frac = data.draw(st.integers(0, (1 << shift) - 1))
    exact = -((-((ns << shift) - frac)) // mult)
    if abs(exact) < 2**62:
        delta = fixed.unscale(*arrays(ns, mult, frac, shift))
        assert delta.tolist() == [exact]
        assert (exact * mult + frac) >> shift >= ns > ((exact - 1) * mult + frac) >> shift
