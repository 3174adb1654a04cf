# SPDX-License-Identifier: GPL-2.0-only
"""Datagrams: no sequence numbers, only order."""

from __future__ import annotations

import numpy as np
from event_builder import CLIENT, Recording
from nsight_report.lifetimes import fifo

ANY = ("0.0.0.0", 11211)
NOBODY = ("0.0.0.0", 0)
EAGAIN = -11


class Server(Recording):
    """A server with an unconnected socket that is bound to the any-address."""

    def __init__(self) -> None:
        super().__init__(proto=17)

    def datagram(self, ts: int, length: int, **fields: object) -> Server:
        """A at ts and its H one ns later."""
        self.arrive(ts, 0, length, **fields)
        cpu = fields.get("cpu", 0)
        self.hand_off(ts + 1, 0, local=ANY, remote=NOBODY, cpu=cpu)
        return self

    def take(self, ts: int, length: int, **fields: object) -> Server:
        """R of the unconnected socket."""
        self.read(ts, 0, length, local=ANY, remote=NOBODY, **fields)
        return self


def test_datagrams_are_read_in_the_order_they_were_handed_off() -> None:
    r = Server().datagram(100, 10).datagram(200, 20, remote=("10.0.0.3", 50000)).take(300, 10).take(310, 20)
    (a, b), losses = r.build()
    assert (a["arrival_ns"], a["handoff_ns"], a["app_ns"], a["raddr"], a["rport"]) == (100, 101, 300, *CLIENT)
    assert (b["arrival_ns"], b["handoff_ns"], b["app_ns"], b["raddr"]) == (200, 201, 310, "10.0.0.3")
    assert a["laddr"] == "10.0.0.1" and a["conn_id"] != b["conn_id"]
    assert (a["timestamps"], losses) == ("ahr", {})


def test_segments_of_one_packet_are_not_cut_short() -> None:
    # UDP_SEGMENT over loopback: one packet of 30 bytes, three datagrams. The next packet's reader takes 4 of 10 bytes.
    r = Server().datagram(100, 30)
    for ts in (102, 103):
        r.hand_off(ts, 0, local=ANY, remote=NOBODY)
    for ts in (300, 310, 320):
        r.take(ts, 10)
    messages, losses = r.datagram(400, 10).take(410, 4).build()
    assert [m["arrival_ns"] for m in messages] == [100, 100, 100, 400]
    assert losses == {"datagrams cut short by the reader": 1}


def test_datagrams_of_one_client_are_numbered() -> None:
    r = Server().datagram(100, 10).take(110, 10).datagram(200, 10).take(210, 10)
    (a, b), _ = r.build()
    assert (a["byte_start"], a["byte_end"], b["byte_start"], b["byte_end"], b["nbytes"]) == (0, 1, 1, 2, 10)


def test_dropped_datagram_is_counted_and_shifts_nothing() -> None:
    # The second datagram finds the buffer full: no hand-off before the next arrival on its core.
    r = Server().datagram(100, 10).arrive(150, 0, 10)
    r.datagram(200, 10).take(300, 10).take(310, 10)  # type: ignore[attr-defined]
    (a, b), losses = r.build()
    assert (a["arrival_ns"], b["arrival_ns"]) == (100, 200)
    assert losses == {"datagrams dropped before the socket": 1}


def test_hand_off_is_not_joined_to_an_arrival_with_another_packet_between() -> None:
    # The H of 120 follows a TCP packet: its A was lost; the A of 100 was dropped.
    r = Server().arrive(100, 0, 10).event("A", 110, proto=6, seq=1, len=5)
    r.hand_off(120, 0, local=ANY, remote=NOBODY).take(130, 10)
    (m,), losses = r.build()
    assert (m["arrival_ns"], m["handoff_ns"], m["timestamps"]) == (None, 120, "hr")
    assert losses["datagrams dropped before the socket"] == 1 and losses["datagram read without arrival"] == 1


def test_datagrams_older_than_the_capture_do_not_shift_the_rest() -> None:
    # Two datagrams wait at the start: three reads, one hand-off, then the queue is empty.
    r = Server().datagram(100, 10).take(110, 10).take(120, 10).take(130, 10).take(140, EAGAIN)
    r.datagram(200, 10).take(210, 10)
    (*_, c, d), losses = r.build()
    assert (c["app_ns"], c["arrival_ns"], d["app_ns"], d["arrival_ns"]) == (130, 100, 210, 200) or (
        d["app_ns"],
        d["arrival_ns"],
    ) == (210, 200)
    by_read = {m["app_ns"]: m["arrival_ns"] for m in r.build()[0]}
    assert by_read == {110: None, 120: None, 130: 100, 210: 200}
    assert losses["datagrams older than the capture"] == 2


def test_lost_read_event_shifts_nothing_beyond_the_next_empty_queue() -> None:
    r = Server().datagram(100, 10).take(120, EAGAIN)  # its read was lost
    r.datagram(200, 10).take(210, 10)
    (m,), losses = r.build()
    assert (m["arrival_ns"], m["app_ns"]) == (200, 210)
    assert losses == {"datagrams handed off without read": 1}


def test_datagram_handed_off_while_the_failing_read_returns_stays_in_the_queue() -> None:
    # The queue was found empty between 195 (entry) and 205 (return); the datagram of 201 came later.
    r = Server().take(205, EAGAIN, call_ns=195).datagram(200, 10).take(220, 10)
    (m,), losses = r.build()
    assert (m["arrival_ns"], losses) == (200, {})


def test_a_datagram_is_not_lost_to_an_empty_queue_whose_read_has_no_known_begin() -> None:
    # 300 found the queue empty before the hand-off of 291, and was recorded after it. At 500 nothing was handed off during the read.
    r = Server().datagram(100, 10).datagram(200, 20).take(210, 10).take(250, 20)
    r.datagram(290, 30).take(300, EAGAIN, call_ns=None).take(320, 30).take(330, EAGAIN, call_ns=None)
    assert arrivals(r.datagram(400, 40).take(410, 40).take(500, EAGAIN, call_ns=None)) == [100, 200, 290, 400]


def test_a_lost_read_and_a_lost_hand_off_around_an_empty_queue_are_not_joined() -> None:
    # The read of the datagram of 100 was lost: another one was read after its hand-off, so that the empty queue was seen later.
    r = Server().datagram(100, 10).datagram(110, 20).take(150, 10).take(160, EAGAIN, call_ns=None)
    messages, losses = r.take(200, 30).take(210, EAGAIN, call_ns=None).build()
    assert [m["arrival_ns"] for m in messages] == [100, None]
    assert losses["datagrams handed off without read"] == losses["datagram read without arrival"] == 1


def handed_off_together(r: Server) -> Server:
    """Datagrams arrive at 100 (core 0), 101 and 102 (cores 1 and 2); core 0 hands all of them off. Core 3 got another one before."""
    r.arrive(60, 0, 5, cpu=3).arrive(100, 0, 10).arrive(101, 0, 20, cpu=1).arrive(102, 0, 30, cpu=2)
    for ts in (110, 111, 112):
        r.hand_off(ts, 0, local=ANY, remote=NOBODY)
    return r


def test_a_core_hands_off_what_other_cores_received() -> None:
    r = handed_off_together(Server()).take(200, 10).take(210, 20).take(220, 30)
    messages, losses = r.build()
    assert [(m["arrival_ns"], m["recv_cpu"], m["handoff_ns"], m["handoff_cpu"]) for m in messages] == [
        (100, 0, 110, 0),
        (101, 1, 111, 0),
        (102, 2, 112, 0),
    ]
    assert losses == {"datagrams dropped before the socket": 1}


def test_segments_are_not_taken_for_a_datagram_that_another_core_dropped_before() -> None:
    # On core 1 the next packet followed before the segmented one arrived: the datagram of 90 was gone by then.
    r = Server().arrive(90, 0, 30, cpu=1).event("A", 95, proto=6, seq=1, len=5, cpu=1).datagram(100, 30)
    for ts in (102, 103):
        r.hand_off(ts, 0, local=ANY, remote=NOBODY)
    for ts in (300, 310, 320):
        r.take(ts, 10)
    messages, losses = r.build()
    assert [m["arrival_ns"] for m in messages] == [100, 100, 100]
    assert losses["datagrams dropped before the socket"] == 1


def raced(r: Server, ts: int, length: int, taken: int) -> Server:
    """A datagram arrives at ``ts`` and is handed off 50 ns later. In between, at 30 ns, a reader on another core took ``taken`` bytes."""
    r.arrive(ts, 0, length)
    r.take(ts + 30, taken, call_ns=ts + 20)
    r.hand_off(ts + 50, 0, local=ANY, remote=NOBODY)
    return r


def arrivals(r: Server) -> list[int | None]:
    """Of each read, in order of time; nothing was lost. Hand-offs after the read are null, and counted."""
    messages, losses = r.build()
    early = sum("h" not in m["timestamps"] for m in messages)
    assert losses == ({"datagram read before its hand-off": early} if early else {})
    return [m["arrival_ns"] for m in sorted(messages, key=lambda m: m["app_ns"])]


def test_a_read_between_queueing_and_hand_off_takes_its_own_datagram() -> None:
    r = Server()
    for i in range(5):
        raced(r, 100 * i, 10 + i, 10 + i)
    assert [m["timestamps"] for m in r.build()[0]] == ["ar"] * 5
    assert arrivals(r.datagram(900, 90).take(950, 90)) == [0, 100, 200, 300, 400, 900]


def test_a_read_between_queueing_and_hand_off_takes_what_waited_before() -> None:
    r = raced(Server().datagram(100, 10), 200, 20, taken=10).take(300, 20)
    assert arrivals(r) == [100, 200]


def test_an_empty_queue_between_an_early_read_and_the_hand_off_shifts_nothing() -> None:
    r = raced(Server().datagram(50, 5).take(60, 5).take(62, EAGAIN, call_ns=61), 100, 10, taken=10)
    r.take(145, EAGAIN, call_ns=140)
    assert arrivals(r.datagram(200, 20).take(210, 20)) == [50, 100, 200]


def test_an_empty_queue_before_the_queueing_keeps_the_datagram_for_the_next_read() -> None:
    # The datagram of 100 was not yet queued at 140.
    r = raced(Server().take(42, EAGAIN, call_ns=41).datagram(50, 5), 100, 10, taken=5)
    r.take(145, EAGAIN, call_ns=140)
    assert arrivals(r.take(210, 10)) == [50, 100]


def test_reading_more_than_arrived_shows_a_wrong_pairing() -> None:
    r = Server().datagram(100, 10).datagram(110, 90).take(200, 90)
    (m,), losses = r.build()
    assert m["timestamps"] == "r" and losses["datagram read longer than it arrived"] == 1


def test_sender_on_the_same_host_stands_for_the_nic() -> None:
    r = Server().peer_sends(90, 0, 10).peer_sends(91, 0, 10).datagram(100, 10).datagram(110, 10)
    r.take(200, 10).take(210, 10)
    (a, b), losses = r.build()
    assert (a["nic_ns"], b["nic_ns"], a["nic_source"], losses) == (90, 91, "peer_xmit", {})


def test_datagram_lost_between_the_drivers_leaves_only_unambiguous_senders() -> None:
    # The first X is lost on the way. 190 directly precedes its arrival; for 290 and 291 it is unknown
    # which arrived at 300.
    r = Server().peer_sends(90, 0, 10).peer_sends(91, 0, 10).datagram(100, 10).take(110, 10)
    r.peer_sends(190, 0, 10).datagram(200, 10).take(210, 10)
    r.peer_sends(290, 0, 10).peer_sends(291, 0, 10).datagram(300, 10).take(310, 10)
    messages, losses = r.build()
    assert {m["app_ns"]: m["nic_ns"] for m in messages} == {110: None, 210: 190, 310: None}
    assert losses["sender of a datagram ambiguous"] == 2


def test_reply_is_joined_to_the_packet_of_its_own_call() -> None:
    r = Server()
    for ts, port in ((100, 40000), (200, 40001)):
        r.drive(ts - 10, 0, 30, remote=("10.0.0.2", port))
        r.send(ts, 0, 30, call_ns=ts - 20, local=ANY, remote=NOBODY)
    (a, b), losses = r.build()
    assert (a["driver_ns"], a["rport"], b["driver_ns"], b["rport"]) == (90, 40000, 190, 40001)
    assert (a["first_ns"], a["latency_ns"], a["timestamps"], losses) == (80, 10, "sd", {})


def test_reply_held_back_by_the_queueing_discipline_is_found_later() -> None:
    r = Server().send(100, 0, 30, local=ANY, remote=NOBODY).send(110, 0, 30, local=ANY, remote=NOBODY)
    r.drive(150, 0, 30, tid=0, cpu=0).drive(160, 0, 30, tid=0, cpu=0)
    (a, b), losses = r.build()
    assert (a["driver_ns"], b["driver_ns"], losses) == (150, 160, {})


def test_queue_comes_right_again_where_a_read_finds_it_empty() -> None:
    # queue 0: out, in, out; queue 1: in, in, out, out, out
    queue = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    out = np.array([True, False, True, False, False, True, True, True])
    taken, depth = fifo.pair(queue, out)
    assert taken.tolist() == [-1, -1, 1, -1, -1, 3, 4, -1]
    assert depth.tolist() == [0, 1, 0, 1, 2, 1, 0, 0]
