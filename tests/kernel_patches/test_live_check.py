# SPDX-License-Identifier: GPL-2.0-only
"""The check of a live recording finds the errors that it looks for: wrong clocks, data out of order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernel-patches"))
import live_check
import live_report
import pandas as pd
from live_check import Device, Event, Message

S = 10**9
#: CLOCK_REALTIME minus CLOCK_MONOTONIC, before and after a step of 5 s at 10 s.
BEFORE, BEHIND = 1000 * S, 1005 * S
SETS = [(BEFORE, BEFORE), (BEHIND + 10 * S, BEHIND)]
TRUTH = {"skew_ppb": 0, "delay_ns": 4000, "jitter_ns": 2000}


def phc(mono: float) -> int:
    """A device's clock that is 7 s ahead of CLOCK_REALTIME before the step, and runs 25 ppm too fast."""
    return 1007 * S + round(mono * (1 + 25e-6))


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """Readings every 100 ms for 20 s; one of them was interrupted for 1 ms before the device was read."""
    lines = ["#nsight-clock 1"]
    for n in range(200):
        mono = n * S // 10
        offset = BEHIND if mono >= 10 * S else BEFORE
        early = 10**6 if n == 50 else 300
        lines.append(f"P\tphc:ptp0\textended\t{mono + offset - early}\t{phc(mono)}\t{mono + offset + 300}")
    path = tmp_path / "clock.tsv"
    path.write_text("\n".join(lines))
    return path


def update(real: int, mono: int) -> Event:
    return Event(mono, "timekeeping_update", {"base_real": str(real), "base_mono": str(mono)})


def test_an_update_without_a_new_offset_is_no_setting() -> None:
    found = [update(BEFORE + n * S, n * S) for n in range(10)] + [update(BEHIND + 10 * S, 10 * S)]
    assert live_check.offsets(found) == SETS


@pytest.mark.parametrize("mono", [1.05 * S, 4.95 * S, 9.5 * S, 10.55 * S, 19 * S])
def test_stamps_are_converted_through_skew_and_step(clock: Path, mono: float) -> None:
    device = Device(clock, SETS)
    assert device(phc(mono)) == pytest.approx(mono, abs=2)
    assert device.width == 600


def packet(at: int, stamp: int, skb: str, **fields: str) -> list[Event]:
    """A packet that the driver has from ``at`` to ``at`` + 50 us; the server gets it 1 ms later."""
    sock = {
        "skbaddr": skb,
        "sport": "11211",
        "sock_cookie": "1",
        "pos": "0",
        "protocol": "6",
        "hwtstamp": str(stamp),
        "len": "18",
    }
    return [
        Event(at, "net_dev_start_xmit", {"skbaddr": skb}),
        Event(at + 50_000, "net_dev_xmit", {"skbaddr": skb, "len": "84"}),
        Event(at + 100_000, "sock_data_queued", sock | fields),
        Event(at + 1_100_000, "sock_data_read", sock | fields),
    ]


def test_a_message_is_joined_from_its_own_packet(clock: Path) -> None:
    device = Device(clock, SETS)
    at = 3 * S
    stamp = phc(at + 20_000 - 5000)
    other = packet(at + 10_000, 0, "0xb", sport="40000")
    found = sorted([*packet(at, stamp, "0xa"), *other], key=lambda e: e.ns)
    (m,) = live_check.messages(found, device)
    assert m == Message(
        at, pytest.approx(at + 15_000, abs=2), at + 50_000, at + 100_000, at + 1_100_000, "TCP"
    )
    assert live_check.stamps_fit([m], device, TRUTH)


def test_a_segment_that_was_merged_with_an_ack_is_left_out(clock: Path) -> None:
    """The address and the events come from the first packet, the timestamp from the second."""
    ack = packet(3 * S, 0, "0xa")[:2]
    ack[1] = Event(ack[1].ns, ack[1].name, {"skbaddr": "0xa", "len": "66"})
    data = packet(3 * S + 300_000, phc(3 * S + 315_000), "0xa")[2:]
    assert list(live_check.messages([*ack, *data], Device(clock, SETS))) == []


def test_without_a_stamp_nothing_is_said_about_the_device(clock: Path) -> None:
    found = packet(3 * S, 0, "0xa")
    assert list(live_check.messages(found, Device(clock, SETS))) == []
    assert [m.stamp for m in live_check.messages(found, None)] == [3 * S]


@pytest.mark.parametrize("off", [-60_000, 60_000])
def test_a_clock_that_is_off_is_found(clock: Path, off: int) -> None:
    device = Device(clock, SETS)
    (m,) = live_check.messages(packet(3 * S, phc(3 * S + 20_000 - 5000 + off), "0xa"), device)
    assert not live_check.stamps_fit([m], device, TRUTH)


def test_messages_without_a_stamp_or_out_of_order_are_told_apart() -> None:
    stamps = ["nic_ns", "handoff_ns", "app_ns"]
    rows = [(1, 2, 3), (1, 1, 1), (2, 1, 3), (1, 4, 3), (None, 4, 3), (1, None, 0)]
    messages = pd.DataFrame(rows, columns=stamps, dtype="Int64")
    assert live_report.count(messages, stamps) == (4, 2)
    assert live_report.count(messages, stamps[1:]) == (5, 2)
    assert live_report.count(messages.iloc[:0], stamps) == (0, 0)
