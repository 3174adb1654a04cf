# SPDX-License-Identifier: GPL-2.0-only
"""Which timestamp may be used as the time when a packet reached the NIC."""

from __future__ import annotations

import numpy as np
from event_builder import Recording
from nsight_report.lifetimes import LifetimeOptions


def phc(stamps: np.ndarray, ifindex: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A NIC clock 1000 ns ahead, read with an error of 4 ns, and not readable on interface 9."""
    return stamps - 1000, np.where(ifindex == 9, -1, 4)


def one(hw_timestamp: int, options: LifetimeOptions, **fields: int) -> tuple[dict, dict]:
    r = Recording().peer_sends(80, 0, 50).arrive(100, 0, 50, hw_timestamp=hw_timestamp, **fields)
    (m,), losses = r.hand_off(110, 50).read(150, 0, 50).build(options)
    return m, losses


def test_hardware_stamp_is_preferred_and_carries_its_error() -> None:
    m, losses = one(1090, LifetimeOptions(phc_to_monotonic=phc))
    assert (m["nic_ns"], m["nic_source"], m["nic_error_ns"], losses) == (90, "hw", 4, {})


def test_hardware_stamp_without_a_clock_is_counted_and_not_used() -> None:
    m, losses = one(1090, LifetimeOptions())
    assert (m["nic_ns"], m["nic_source"]) == (80, "peer_xmit")
    assert losses == {"hardware timestamps without a NIC clock": 1}


def test_hardware_stamp_outside_the_clock_readings_is_counted_and_not_used() -> None:
    m, losses = one(1090, LifetimeOptions(phc_to_monotonic=phc), ifindex=9)
    assert (m["nic_source"], losses) == ("peer_xmit", {"hardware timestamps that cannot be converted": 1})


def test_nic_stamp_after_the_arrival_is_counted_and_taken_out() -> None:
    m, losses = one(1101, LifetimeOptions(phc_to_monotonic=phc))  # 1101 - 1000 = 101 > 100
    assert (m["nic_ns"], m["nic_source"], m["nic_error_ns"], m["first_ns"]) == (None, "none", None, 100)
    assert losses == {"negative interval: NIC timestamp after the arrival": 1}


def test_senders_software_stamp_is_rejected_and_clocks_are_told_apart() -> None:
    second = 1_000_000_000
    base, offset = 50_000 * second, 1_700_000_000 * second
    r = Recording()
    stamps = [base - 5, base + offset, base + offset + 37 * second, 12345]
    for i, stamp in enumerate(stamps):
        r.arrive(base + i, 50 * i, 50, sw_timestamp=stamp).hand_off(base + 10 + i, 50 * i + 50)
        r.read(base + 20 + i, 50 * i, 50)
    messages, losses = r.build(LifetimeOptions(realtime_offset_ns=offset))
    assert losses == {
        f"software timestamps in {c}": 1 for c in ("monotonic", "realtime", "TAI", "unknown clock")
    }
    assert all(m["nic_ns"] is None for m in messages)
