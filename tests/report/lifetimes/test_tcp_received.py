# SPDX-License-Identifier: GPL-2.0-only
"""Received TCP messages: every case in which bytes, packets and reads do not match one to one."""

from __future__ import annotations

from event_builder import FIN, SYN, Recording


def test_a_request_has_all_four_stamps_and_the_cores_that_took_them() -> None:
    r = Recording()
    r.peer_sends(90, 1000, 50).arrive(100, 1000, 50, cpu=3).hand_off(110, 1050, cpu=3).read(150, 1000, 50)
    (m,), losses = r.build()
    assert (
        m["nic_ns"],
        m["arrival_ns"],
        m["arrival_last_ns"],
        m["handoff_ns"],
        m["call_ns"],
        m["app_ns"],
    ) == (90, 100, 100, 110, 145, 150)
    assert (m["first_ns"], m["last_ns"], m["latency_ns"]) == (90, 150, 60)  # 150 - 90
    assert (m["nic_source"], m["nic_error_ns"], m["timestamps"]) == ("peer_xmit", 0, "nahr")
    assert (m["recv_cpu"], m["handoff_cpu"], m["app_cpu"], m["pid"], m["tid"], m["fd"]) == (3, 3, 1, 6, 7, 9)
    assert (m["direction"], m["byte_start"], m["byte_end"], m["nbytes"], m["n_arrivals"]) == (
        "rx",
        0,
        50,
        50,
        1,
    )
    assert losses == {}


def test_several_packets_in_one_read_are_one_message_from_first_to_last_packet() -> None:
    r = Recording().arrive(100, 0, 10).hand_off(101, 10).arrive(200, 10, 10).hand_off(201, 20)
    r.arrive(300, 20, 10).hand_off(301, 30).read(400, 0, 30)
    (m,), losses = r.build()
    assert (m["arrival_ns"], m["arrival_last_ns"], m["handoff_ns"], m["n_arrivals"]) == (100, 300, 301, 3)
    assert losses == {}


def test_one_coalesced_packet_read_in_two_reads_is_two_messages_with_the_same_arrival() -> None:
    r = Recording().arrive(100, 0, 100).hand_off(101, 100).read(110, 0, 60).read(120, 60, 40)
    (a, b), losses = r.build()
    assert (a["arrival_ns"], a["handoff_ns"], a["app_ns"]) == (100, 101, 110)
    assert (b["arrival_ns"], b["handoff_ns"], b["app_ns"]) == (100, 101, 120)
    assert (a["byte_start"], a["byte_end"], b["byte_start"], b["byte_end"]) == (0, 60, 60, 100)
    assert losses == {}


def test_a_message_is_unaccepted_if_the_hand_off_of_its_last_byte_was() -> None:
    r = Recording().arrive(100, 0, 50).hand_off(101, 50, flags=1).arrive(110, 50, 50).hand_off(111, 100)
    (a, b), _ = r.read(130, 0, 50).read(140, 50, 50).build()
    assert (a["unaccepted"], b["unaccepted"]) == (True, False)


def test_retransmitted_copy_does_not_replace_the_first_arrival() -> None:
    r = Recording().arrive(100, 0, 50).hand_off(101, 50).arrive(300, 0, 50).read(400, 0, 50)
    (m,), _ = r.build()
    assert (m["arrival_ns"], m["retransmitted"], m["n_arrivals"], m["copy_lost"]) == (100, True, 2, False)
    assert m["arrival_last_ns"] == 100  # the copy of 300 was not the one handed off


def test_a_copy_that_was_dropped_behind_its_arrival_is_not_the_last_arrival() -> None:
    # A filter dropped the packet of 100; the one of 300 was handed off.
    r = Recording().arrive(100, 0, 50).arrive(300, 0, 50).hand_off(301, 50).read(400, 0, 50)
    (m,), _ = r.build()
    assert (m["arrival_ns"], m["arrival_last_ns"], m["retransmitted"], m["copy_lost"]) == (
        100,
        300,
        True,
        True,
    )


def test_no_copy_was_lost_of_what_was_in_the_socket_when_it_came_again() -> None:
    # The peer sends 0-50 again with new data; then the packet of 80-100 is dropped and sent again.
    r = Recording().arrive(100, 0, 50).hand_off(101, 50).arrive(200, 0, 80).hand_off(201, 80)
    r.arrive(210, 80, 20).arrive(400, 80, 20).hand_off(401, 100)
    messages, _ = r.read(500, 0, 50).read(501, 50, 30).read(502, 80, 20).build()
    assert [(m["retransmitted"], m["copy_lost"]) for m in messages] == [
        (True, False),
        (False, False),
        (True, True),
    ]


def test_no_copy_was_lost_of_what_came_twice_ahead_of_a_hole() -> None:
    """50-100 overtakes 0-50 and is sent again; both are in the socket as soon as 0-50 has arrived."""
    r = Recording().arrive(10, -5, 5).hand_off(11, 0).read(12, -5, 5)
    r.arrive(100, 50, 50).arrive(150, 50, 50).arrive(200, 0, 50).hand_off(201, 100)
    (_, ahead, hole), _ = r.read(300, 0, 50).read(310, 50, 50).build()
    assert (hole["retransmitted"], hole["copy_lost"]) == (False, False)
    assert (ahead["retransmitted"], ahead["copy_lost"], ahead["arrival_last_ns"]) == (True, False, 100)


def test_a_copy_ahead_of_a_hole_that_is_not_there_when_it_is_filled_was_lost() -> None:
    """0-50 fills the hole, and only 0-50 is in the socket: 50-100 has to be sent again."""
    r = Recording().arrive(10, -5, 5).hand_off(11, 0).read(12, -5, 5)
    r.arrive(100, 50, 50).arrive(200, 0, 50).hand_off(201, 50).arrive(300, 50, 50).hand_off(301, 100)
    (_, ahead, hole), _ = r.read(400, 0, 50).read(410, 50, 50).build()
    assert (hole["copy_lost"], ahead["copy_lost"], ahead["arrival_last_ns"]) == (False, True, 300)


def test_copies_were_lost_of_packets_that_were_dropped_and_come_again_together() -> None:
    """Both arrive before either is handed off, as in one batch of the driver."""
    r = Recording().arrive(10, -5, 5).hand_off(11, 0).read(12, -5, 5).arrive(100, 0, 50).arrive(101, 50, 50)
    r.arrive(300, 0, 50).arrive(301, 50, 50).hand_off(302, 100)
    (_, *both), _ = r.read(400, 0, 50).read(410, 50, 50).build()
    assert [(m["copy_lost"], m["arrival_last_ns"]) for m in both] == [(True, 300), (True, 301)]


def test_partial_retransmission_marks_only_the_messages_it_repeats() -> None:
    # bytes 0-50 and 50-100 arrive, then 40-50 again
    r = Recording().arrive(100, 0, 50).hand_off(101, 50).arrive(110, 50, 50).hand_off(111, 100)
    r.arrive(120, 40, 10).read(130, 0, 50).read(140, 50, 50)
    (a, b), _ = r.build()
    assert (a["retransmitted"], b["retransmitted"]) == (True, False)


def test_the_peers_copy_that_arrived_is_the_last_one_before_the_arrival() -> None:
    # The copy of 80 was lost on the way; the one of 290 arrived at 300.
    r = Recording().peer_sends(80, 0, 50).peer_sends(290, 0, 50).arrive(300, 0, 50).hand_off(310, 50)
    r.peer_sends(320, 0, 50).read(400, 0, 50)
    (m,), _ = r.build()
    assert (m["nic_ns"], m["arrival_ns"], m["retransmitted"]) == (290, 300, False)


def test_out_of_order_data_is_handed_off_when_the_hole_is_filled() -> None:
    # 50-100 overtakes 0-50: both are in the socket from 201 on
    r = Recording().arrive(10, -5, 5).hand_off(11, 0).read(12, -5, 5)
    r.arrive(100, 50, 50).arrive(200, 0, 50).hand_off(201, 100).read(300, 0, 100)
    (_, m), losses = r.build()
    assert (m["arrival_ns"], m["arrival_last_ns"], m["handoff_ns"]) == (200, 100, 201)
    assert (m["retransmitted"], m["n_arrivals"]) == (False, 2)
    assert losses == {}


def test_keep_alive_byte_is_neither_message_nor_retransmission() -> None:
    r = Recording().arrive(100, 0, 50).hand_off(101, 50).read(110, 0, 50)
    r.arrive(9_000, 49, 1).arrive(20_000, 50, 50).hand_off(20_001, 100).read(20_010, 50, 50)
    (a, b), losses = r.build()
    assert (a["retransmitted"], a["n_arrivals"], b["arrival_ns"]) == (False, 1, 20_000)
    assert losses == {"keep-alive probes": 1}


def test_retransmitted_single_byte_is_a_retransmission() -> None:
    r = Recording().arrive(100, 0, 1).hand_off(101, 1).arrive(300, 0, 1).read(400, 0, 1)
    (m,), losses = r.build()
    assert m["retransmitted"] and losses == {}


def test_short_reads_share_the_hand_off_only_if_it_had_all_their_bytes() -> None:
    r = (
        Recording()
        .arrive(100, 0, 30)
        .hand_off(101, 30)
        .read(110, 0, 20)
        .arrive(120, 30, 10)
        .hand_off(121, 40)
    )
    r.read(130, 20, 20)
    (a, b), _ = r.build()
    assert (a["handoff_ns"], b["handoff_ns"]) == (101, 121)
    assert (b["arrival_ns"], b["arrival_last_ns"], b["n_arrivals"]) == (100, 120, 2)


def test_end_of_stream_failed_and_peeking_reads_are_counted_and_no_messages() -> None:
    r = Recording().arrive(100, 0, 10).hand_off(101, 10).read(105, -10, 10, flags=2).read(110, 0, 10)
    r.read(111, 10, -11).arrive(120, 10, 0, flags=FIN).hand_off(121, 11).read(130, 10, 0)
    messages, losses = r.build()
    assert len(messages) == 1
    assert losses == {
        "reads that only peeked": 1,
        "reads that failed": 1,
        "reads at the end of the stream": 1,
    }


def test_same_addresses_with_a_new_socket_are_another_connection() -> None:
    # The first connection leaves 20 bytes unread; the second starts at nearly the same sequence number.
    r = (
        Recording()
        .arrive(90, 999, 0, flags=SYN)
        .arrive(100, 1000, 30)
        .hand_off(101, 1030)
        .read(110, 1000, 10)
    )
    r.arrive(120, 1030, 0, flags=FIN)
    r.arrive(500, 1009, 0, flags=SYN).arrive(510, 1010, 20).hand_off(511, 1030, sk=0x200)
    r.read(520, 1010, 20, sk=0x200)
    (a, b), losses = r.build()
    assert a["conn_id"] != b["conn_id"]
    assert (b["byte_start"], b["byte_end"], b["arrival_ns"], b["handoff_ns"]) == (0, 20, 510, 511)
    assert not b["retransmitted"]
    assert losses == {"arrived but not read": 1, "handed off but not read": 1}


def test_address_reuse_is_recognised_by_the_socket_when_the_syn_was_lost() -> None:
    r = Recording().arrive(100, 1000, 30).hand_off(101, 1030).read(110, 1000, 30)
    r.arrive(510, 1000, 20).hand_off(511, 1020, sk=0x200).read(520, 1000, 20, sk=0x200)
    (a, b), losses = r.build()
    assert a["conn_id"] != b["conn_id"]
    assert (a["arrival_ns"], b["arrival_ns"], b["handoff_ns"]) == (100, 510, 511)
    assert losses == {}


def test_repeated_syn_does_not_begin_a_connection() -> None:
    r = Recording().arrive(80, 99, 0, flags=SYN).arrive(90, 99, 0, flags=SYN)
    r.arrive(100, 100, 10).hand_off(101, 110).read(110, 100, 10).arrive(115, 99, 0, flags=SYN)
    r.arrive(120, 110, 10).hand_off(121, 120).read(130, 110, 10)
    (a, b), _ = r.build()
    assert a["conn_id"] == b["conn_id"] and (b["byte_start"], b["arrival_ns"]) == (10, 120)


def test_the_first_byte_after_the_syn_is_byte_0_even_if_its_events_were_lost() -> None:
    r = Recording().arrive(80, 99, 0, flags=SYN).arrive(100, 110, 5).hand_off(101, 115).read(110, 110, 5)
    (m,), _ = r.build()
    assert (m["byte_start"], m["byte_end"]) == (10, 15)  # 110 - (99 + 1)


def test_capture_starting_mid_message_leaves_its_first_stamps_null() -> None:
    # bytes 0-20 arrived before the recording began
    r = Recording().arrive(100, 20, 30).hand_off(101, 50).read(110, 0, 50)
    (m,), losses = r.build()
    assert (m["arrival_ns"], m["arrival_last_ns"], m["handoff_ns"], m["timestamps"]) == (None, 100, 101, "hr")
    assert losses["read without arrival: older than the capture"] == 1


def test_capture_ending_mid_message_counts_what_was_not_read() -> None:
    r = (
        Recording()
        .arrive(100, 0, 10)
        .hand_off(101, 10)
        .read(110, 0, 10)
        .arrive(120, 10, 10)
        .hand_off(121, 20)
    )
    messages, losses = r.build()
    assert len(messages) == 1
    assert losses == {"arrived but not read": 1, "handed off but not read": 1}


def test_lost_arrival_and_lost_hand_off_are_counted_and_null() -> None:
    r = Recording().arrive(100, 0, 10).hand_off(101, 10).read(110, 0, 10)
    r.read(210, 10, 10)  # both earlier events lost
    (a, b), losses = r.build()
    assert a["timestamps"] == "nahr".replace("n", "") and b["timestamps"] == "r"
    assert (b["first_ns"], b["latency_ns"]) == (210, 0)
    assert losses["read without arrival"] == 1 and losses["read without hand-off"] == 1


def test_lost_read_is_counted_in_bytes() -> None:
    r = Recording().arrive(100, 0, 10).hand_off(101, 10).read(110, 0, 10)
    r.arrive(120, 10, 10).hand_off(121, 20).arrive(130, 20, 10).hand_off(131, 30).read(140, 20, 10)
    messages, losses = r.build()
    assert len(messages) == 2 and losses == {"bytes that no read event took": 10}


def test_sequence_numbers_wrap_in_the_middle_of_a_message() -> None:
    start = 2**32 - 20
    r = Recording().arrive(90, start - 30, 30).hand_off(91, start).read(95, start - 30, 30)
    r.arrive(100, start, 50).hand_off(101, start + 50).read(110, start, 50)
    r.arrive(200, start + 50, 50).hand_off(201, start + 100).read(210, start + 50, 50)
    (_, a, b), losses = r.build()
    assert (a["byte_start"], a["byte_end"], b["byte_start"], b["byte_end"]) == (30, 80, 80, 130)
    assert (a["arrival_ns"], a["handoff_ns"], b["arrival_ns"], b["handoff_ns"]) == (100, 101, 200, 201)
    assert losses == {}


def test_more_than_4_gib_on_a_connection_do_not_fold_onto_each_other() -> None:
    # six reads, 1 GiB apart: the fifth has the sequence number of the first again
    r = Recording()
    for i in range(6):
        seq = i << 30
        r.arrive(100 + 1000 * i, seq, 1 << 30).hand_off(101 + 1000 * i, seq + (1 << 30))
        r.read(110 + 1000 * i, seq, 1 << 30)
    messages, losses = r.build()
    assert [m["byte_start"] for m in messages] == [i << 30 for i in range(6)]
    assert [m["arrival_ns"] for m in messages] == [100 + 1000 * i for i in range(6)]
    assert not any(m["retransmitted"] for m in messages) and losses == {}


def test_arrival_after_the_hand_off_is_counted_and_taken_out() -> None:
    # The first copy's event was lost; the copy of 200 cannot be the one handed off at 101.
    r = Recording().arrive(50, -10, 10).hand_off(51, 0).read(60, -10, 10)
    r.hand_off(101, 50).arrive(200, 0, 50).read(300, 0, 50)
    (_, m), losses = r.build()
    assert (m["arrival_ns"], m["arrival_last_ns"], m["recv_cpu"], m["handoff_ns"]) == (None, None, None, 101)
    assert losses["negative interval: arrival after the hand-off"] == 1
    assert losses["negative interval: arrival of the last byte after the hand-off"] == 1


def test_hand_off_after_the_read_is_counted_and_taken_out() -> None:
    # It reaches no further than the message: it is the message's own, and a clock is wrong.
    r = Recording().arrive(100, 0, 50).read(110, 0, 50).hand_off(120, 50)
    r.arrive(125, 50, 5).hand_off(126, 55).read(130, 50, 5)
    (m, after), losses = r.build()
    assert (m["arrival_ns"], m["handoff_ns"], m["handoff_cpu"], m["timestamps"]) == (100, None, None, "ar")
    assert after["handoff_ns"] == 126
    assert losses == {"negative interval: hand-off after the read": 1}


def test_hand_off_of_later_data_is_no_negative_interval_of_a_message_whose_own_was_lost() -> None:
    r = Recording().arrive(100, 0, 50).read(110, 0, 50).arrive(115, 50, 5).hand_off(120, 55).read(130, 50, 5)
    (m, after), losses = r.build()
    assert (m["arrival_ns"], m["handoff_ns"], m["handoff_cpu"], m["timestamps"]) == (100, None, None, "ar")
    assert after["handoff_ns"] == 120
    assert losses == {"read without hand-off": 1}


def test_message_handed_off_before_the_capture_is_older_than_it_though_later_data_is_handed_off() -> None:
    r = Recording().read(110, 0, 50).arrive(115, 50, 5).hand_off(120, 55).read(130, 50, 5)
    (m, after), losses = r.build()
    assert (m["arrival_ns"], m["handoff_ns"], m["timestamps"]) == (None, None, "r")
    assert after["handoff_ns"] == 120
    assert not any(loss.startswith("negative interval") for loss in losses)
    assert losses["read without hand-off: older than the capture"] == 1


def test_events_recorded_twice_count_once() -> None:
    r = Recording()
    for _ in range(2):
        r.arrive(100, 0, 50).hand_off(101, 50).read(110, 0, 50)
    messages, losses = r.build()
    assert len(messages) == 1 and losses == {"events recorded twice": 3}
    assert not messages[0]["retransmitted"]


def test_second_pass_through_a_bridge_is_no_retransmission() -> None:
    r = (
        Recording()
        .arrive(100, 0, 50, ifindex=2)
        .arrive(103, 0, 50, ifindex=5)
        .hand_off(110, 50)
        .read(120, 0, 50)
    )
    (m,), _ = r.build()
    assert (m["arrival_ns"], m["retransmitted"], m["n_arrivals"]) == (100, False, 1)


def test_the_nearest_hop_stands_for_the_nic_when_a_packet_crosses_several_devices() -> None:
    r = Recording().peer_sends(80, 0, 50).peer_sends(90, 0, 50, netns=3, ifindex=8)
    r.arrive(100, 0, 50).hand_off(101, 50).read(110, 0, 50)
    (m,), _ = r.build()
    assert m["nic_ns"] == 90


def test_two_networks_with_the_same_addresses_do_not_mix() -> None:
    r = Recording()
    for netns, seq, ts in ((1, 1000, 0), (11, 3_000_000_000, 7)):
        r.peer_sends(90 + ts, seq, 50, netns=netns + 1).arrive(100 + ts, seq, 50, netns=netns)
        r.hand_off(110 + ts, seq + 50, netns=netns, sk=netns).read(150 + ts, seq, 50, netns=netns, sk=netns)
    (a, b), losses = r.build()
    assert (a["nic_ns"], a["arrival_ns"], b["nic_ns"], b["arrival_ns"]) == (90, 100, 97, 107)
    assert a["conn_id"] != b["conn_id"] and losses == {}


def test_messages_of_two_connections_keep_to_their_own_events() -> None:
    r = Recording()
    other = ("10.0.0.2", 40001)
    r.arrive(100, 0, 10).arrive(101, 0, 10, remote=other).hand_off(102, 10, remote=other, sk=0x300)
    r.hand_off(103, 10).read(110, 0, 10).read(111, 0, 10, remote=other, sk=0x300)
    (a, b), _ = r.build()
    assert (a["rport"], a["arrival_ns"], a["handoff_ns"]) == (40000, 100, 103)
    assert (b["rport"], b["arrival_ns"], b["handoff_ns"]) == (40001, 101, 102)
