# SPDX-License-Identifier: GPL-2.0-only
"""Sent TCP messages: send call, hand-over to the driver, completion."""

from __future__ import annotations

import numpy as np
import pytest
from event_builder import SYN, Recording
from nsight_report.lifetimes import LifetimeOptions


def test_a_reply_lasts_from_the_call_to_the_driver() -> None:
    r = Recording().drive(95, 500, 40, cpu=2).send(100, 500, 40, call_ns=70)
    (m,), losses = r.build()
    assert (m["direction"], m["call_ns"], m["app_ns"], m["driver_ns"], m["completion_ns"]) == (
        "tx",
        70,
        100,
        95,
        None,
    )
    assert (m["first_ns"], m["last_ns"], m["latency_ns"], m["timestamps"]) == (70, 95, 25, "sd")
    assert (m["recv_cpu"], m["app_cpu"], m["byte_start"], m["byte_end"]) == (2, 1, 0, 40)
    assert losses == {}


def test_a_large_reply_ends_when_its_last_byte_is_handed_over() -> None:
    r = Recording().drive(90, 0, 1000).send(100, 0, 2500).drive(200, 1000, 1000).drive(300, 2000, 500)
    (m,), _ = r.build()
    assert (m["driver_ns"], m["last_ns"], m["n_arrivals"], m["retransmitted"]) == (300, 300, 3, False)


def test_time_in_the_queue_discipline_is_that_of_any_data_of_the_connection_after_the_call() -> None:
    """The call returns at 100, the driver has the last byte at 500. TCP passed packets on at 80, 85, 120 and 450, and they
    left at 90, 300, 400 and 500: from 100 on, 200 + 100 + 50 ns. Before 450, TCP itself held data back."""
    r = Recording().send(100, 0, 4000)
    for left, number, passed in ((90, 0, 80), (300, 1, 85), (400, 2, 120), (500, 3, 450)):
        r.drive(left, 1000 * number, 1000, sw_timestamp=passed)
    # What another connection has in the queue does not matter.
    other = ("10.0.0.2", 40001)
    r.send(101, 0, 10, remote=other, sk=0x200).drive(490, 0, 10, remote=other, sw_timestamp=98)
    made, _ = r.build()
    assert [(m["driver_ns"], m["qdisc_dur_ns"]) for m in made] == [(500, 350), (490, 389)]


def test_later_data_waits_behind_what_the_queue_discipline_has_of_earlier_sends() -> None:
    """TCP keeps the second send's data until the first one's has left, at 300, and then it is in the queue until 320."""
    r = Recording().send(100, 0, 10).send(120, 10, 10)
    r.drive(300, 0, 10, sw_timestamp=90).drive(320, 10, 10, sw_timestamp=300)
    made, _ = r.build()
    assert [m["qdisc_dur_ns"] for m in made] == [200, 200]


@pytest.mark.parametrize("stamp", [0, 301, 1_700_000_000_000_000_000])
def test_time_in_the_queue_discipline_is_unknown_without_tcps_time(stamp: int) -> None:
    """None; a time of departure that a paced packet did not wait for; and the wall clock."""
    r = Recording().send(100, 0, 20).drive(90, 0, 10, sw_timestamp=80).drive(300, 10, 10, sw_timestamp=stamp)
    (m,), _ = r.build()
    assert m["qdisc_dur_ns"] is None


def test_data_that_reached_the_driver_within_the_call_was_in_no_queue_after_it() -> None:
    (m,), _ = Recording().drive(95, 0, 10, sw_timestamp=80).send(100, 0, 10).build()
    assert m["qdisc_dur_ns"] == 0


def test_replies_collected_into_one_packet_share_the_driver_stamp() -> None:
    r = Recording().send(100, 0, 10).send(110, 10, 10).drive(150, 0, 20)
    (a, b), _ = r.build()
    assert (a["driver_ns"], b["driver_ns"]) == (150, 150)


def test_retransmission_keeps_the_first_hand_to_the_driver() -> None:
    r = Recording().drive(95, 0, 10).send(100, 0, 10).drive(300, 0, 10)
    (m,), _ = r.build()
    assert (m["driver_ns"], m["retransmitted"], m["n_arrivals"]) == (95, True, 2)


def test_reply_still_queued_at_the_end_is_counted() -> None:
    r = Recording().drive(95, 0, 10).send(100, 0, 10).send(110, 10, 10)
    (_, b), losses = r.build()
    assert (b["driver_ns"], b["timestamps"], b["last_ns"]) == (None, "s", 110)
    assert losses == {"sent but not handed to the driver": 1}


def test_lost_driver_event_is_a_warning_and_not_the_end_of_the_capture() -> None:
    r = Recording().send(100, 0, 10).send(110, 10, 10).drive(120, 10, 10)
    (a, _), losses = r.build()
    assert a["driver_ns"] is None and losses == {"sent without driver event": 1}


def test_send_without_the_time_of_its_call_begins_no_later_than_the_driver() -> None:
    (m,), losses = Recording().drive(95, 0, 10).send(100, 0, 10, call_ns=None).build()
    assert (m["first_ns"], m["last_ns"], m["latency_ns"]) == (95, 95, 0)
    assert losses == {"sent messages without the time of the call": 1}


def test_driver_before_the_call_is_counted_and_taken_out() -> None:
    # The X belongs to an older connection's bytes with the same numbers
    (m,), losses = Recording().drive(60, 0, 10).send(100, 0, 10, call_ns=70).build()
    assert m["driver_ns"] is None and losses == {"negative interval: driver before the send call": 1}


def test_completion_comes_from_the_packet_with_the_last_byte() -> None:
    r = Recording().send(100, 0, 2000).drive(90, 0, 1000).drive(91, 1000, 1000)
    r.event("T", 300, seq=0, len=1000).event("T", 400, seq=1000, len=1000)
    r.event("T", 900, seq=1000, len=1000, flags=2)  # the peer's acknowledgement is not a completion
    (m,), _ = r.build()
    assert (m["completion_ns"], m["last_ns"], m["timestamps"]) == (400, 400, "sdc")


def test_acknowledgement_is_that_of_the_last_byte_and_in_no_lifetime() -> None:
    """Two sends in one segment, which is acknowledged as a whole; the third is sent again, and its first acknowledgement counts."""
    r = Recording().send(100, 0, 10).send(110, 10, 10).drive(120, 0, 20).send(200, 20, 10).drive(210, 20, 10)
    r.event("T", 300, seq=0, len=20, flags=2)
    r.event("T", 500, seq=20, len=10, flags=2).event("T", 600, seq=20, len=10, flags=2)
    made, _ = r.send(700, 30, 10).drive(710, 30, 10).build()
    assert [m["acked_ns"] for m in made] == [300, 300, 500, None]
    assert [m["last_ns"] for m in made] == [120, 120, 210, 710]


def test_hardware_completion_is_converted_from_the_nics_clock() -> None:
    def phc(stamps: np.ndarray, ifindex: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return stamps - 5_000_000, np.full(len(stamps), 3)

    r = Recording().send(100, 0, 10).drive(90, 0, 10).event("T", 500, seq=0, len=10, hw_timestamp=5_000_300)
    (m,), _ = r.build(LifetimeOptions(phc_to_monotonic=phc))
    assert m["completion_ns"] == 300  # 5 000 300 - 5 000 000


def test_both_directions_of_a_connection_have_the_same_id_and_their_own_offsets() -> None:
    r = Recording().arrive(10, 99, 0, flags=SYN).drive(11, 4999, 0, flags=SYN)
    r.arrive(100, 100, 20).hand_off(101, 120).read(110, 100, 20).drive(120, 5000, 30).send(121, 5000, 30)
    (rx, tx), losses = r.build()
    assert (rx["direction"], tx["direction"]) == ("tx", "rx") or (rx["direction"], tx["direction"]) == (
        "rx",
        "tx",
    )
    assert rx["conn_id"] == tx["conn_id"] and (rx["byte_start"], tx["byte_start"]) == (0, 0)
    assert losses == {}
