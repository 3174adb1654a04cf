# SPDX-License-Identifier: GPL-2.0-only
"""Requests made from hand-made messages: which reply belongs to which request, and where the time went, to the nanosecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machinery.made_up.tables import Row
from made_messages import join, received, sent


def phases(request: dict[str, Any]) -> list[int]:
    """Receive, queue, service, transmit."""
    return [request[f"{name}_dur_ns"] for name in ("receive", "queue", "service", "transmit")]


def test_phases_of_a_request_are_between_its_stamps(tmp_path: Path) -> None:
    rows = [received(0, 1000, 1500, 4000), sent(0, 24_000, 24_700, completion_ns=26_000, acked_ns=64_000)]
    made, losses = join(rows, tmp_path)
    assert losses == {}
    (r,) = made
    # In at 1000, at the socket 500 later, read after 2500 more; worked on for 20,000, and 700 to the driver.
    assert phases(r) == [500, 2500, 20_000, 700]
    assert (r["first_ns"], r["last_ns"], r["latency_ns"]) == (1000, 24_700, 23_700)
    assert (r["handoff_ns"], r["read_ns"], r["first_send_ns"], r["completion_ns"]) == (
        1500,
        4000,
        24_000,
        26_000,
    )
    assert r["acked_ns"] == 64_000
    assert (r["role"], r["join"], r["certain"]) == ("server", "alternation", True)
    assert (r["request_id"], r["last_message_id"], r["reply_message_id"], r["last_reply_message_id"]) == (
        0,
        0,
        1,
        1,
    )


def test_everything_sent_until_the_next_read_is_the_reply(tmp_path: Path) -> None:
    rows = [
        received(0, 1000, 1500, 2000), sent(0, 3000, 3100, nbytes=10), sent(0, 5000, 5200, nbytes=7),
        received(0, 8000, 8500, 9000), sent(0, 9500, 9600),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path)
    assert losses == {}
    # Two sends: the service ends with the call of the second, at 5000.
    assert [phases(r) for r in made] == [[500, 500, 3000, 200], [500, 500, 500, 100]]
    assert [(r["n_reply_messages"], r["reply_nbytes"], r["first_send_ns"]) for r in made] == [
        (2, 17, 3000),
        (1, 1, 9500),
    ]


def test_service_lasts_to_the_last_call_of_a_reply_that_took_several(tmp_path: Path) -> None:
    """A framed reply is one message, whose first call began at 3000 and whose last one at 9000; its last byte left at 9100."""
    request = received(0, 1000, 1500, 2000, request_type="GET")
    reply = sent(0, 3000, 9100, last_call_ns=9000, app_ns=9200, request_type="200", n_reads=3)
    made, losses = join([request, reply], tmp_path, framing="http")
    assert losses == {}
    assert [(r["first_send_ns"], r["last_send_ns"], r["latency_ns"]) for r in made] == [(3000, 9000, 8100)]
    assert [phases(r) for r in made] == [[500, 500, 7000, 100]]
    # The begin of the last call is not known: the driver had the last byte before the call returned.
    made, losses = join([request, reply | {"last_call_ns": None}], tmp_path, framing="http")
    assert [phases(r) for r in made] == [[500, 500, 7100, 0]]
    assert losses == {"requests_without_send_call": 1}


def test_connections_do_not_mix(tmp_path: Path) -> None:
    rows = [
        received(0, 0, 500, 1000), received(1, 100, 600, 1100), received(2, 200, 700, 1200),
        sent(2, 2000, 2100), sent(0, 3000, 3100), sent(1, 4000, 4100),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path)
    assert losses == {}
    assert {r["conn_id"]: (r["first_ns"], r["last_ns"]) for r in made} == {
        0: (0, 3100),
        1: (100, 4100),
        2: (200, 2100),
    }
    # In order of their first byte.
    assert [r["conn_id"] for r in made] == [0, 1, 2]


def test_a_request_in_several_reads_is_one_and_not_certain(tmp_path: Path) -> None:
    made, losses = join([received(0, 0, 100, 200), received(0, 300, 400, 900), sent(0, 1000, 1100)], tmp_path)
    (r,) = made
    # From the first byte of the first part to the hand-off of the second.
    assert phases(r) == [400, 500, 100, 100]
    assert (r["n_messages"], r["nbytes"], r["certain"]) == (2, 2, False)
    assert losses == {"requests_in_several_calls": 1}


def test_behind_a_request_in_several_reads_none_is_certain(tmp_path: Path) -> None:
    """If the first two reads were two requests, the reply at 230 is to the second one."""
    rows = [received(0, 0, 5, 10), received(0, 20, 25, 30), sent(0, 40, 45)]
    for at in (200, 300):
        rows += [received(0, at, at + 5, at + 10), sent(0, at + 30, at + 35)]
    # On another connection, two replies were sent for the two reads.
    rows += [received(1, 0, 5, 10), received(1, 20, 25, 30), sent(1, 40, 45), sent(1, 50, 55)]
    rows += [received(1, 200, 205, 210), sent(1, 230, 235)]
    made, losses = join(rows, tmp_path)
    found = {(r["conn_id"], r["first_ns"]): r["certain"] for r in made}
    assert found == {(0, 0): False, (0, 200): False, (0, 300): False, (1, 0): False, (1, 200): True}
    assert losses == {"requests_in_several_calls": 2, "requests_behind_several_calls": 2}


def test_what_has_no_other_half_is_counted_and_in_no_row(tmp_path: Path) -> None:
    rows = [
        # A greeting, a request with its reply, and one that the recording's end cut off.
        sent(0, 100, 200), received(0, 1000, 1100, 1200), sent(0, 1300, 1400), received(0, 2000, 2100, 2200),
        # Log lines that nobody answers.
        *(received(1, 5000 + i, 5100 + i, 5200 + i) for i in range(3)),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path)
    assert [(r["first_ns"], r["last_ns"]) for r in made] == [(1000, 1400)]
    assert losses == {"replies_without_request": 1, "requests_without_reply": 1, "messages_one_way": 3}


def test_intervals_in_the_table_of_messages_are_of_no_request(tmp_path: Path) -> None:
    interval = received(5, 100, 150, 5000, direction="interval", proto=0)
    made, losses = join([received(0, 1000, 1500, 4000), sent(0, 24_000, 24_700), interval], tmp_path)
    assert ([(r["first_ns"], r["last_ns"]) for r in made], losses) == ([(1000, 24_700)], {})
    assert join([received(0, 1000, 1500, 4000), interval], tmp_path) == ([], {})


def test_a_recording_of_one_direction_has_no_requests_and_lacks_none(tmp_path: Path) -> None:
    assert join([received(0, 0, 100, 200), received(0, 300, 400, 900)], tmp_path) == ([], {})
    assert join([], tmp_path) == ([], {})


def test_stamps_that_were_not_taken_move_the_border(tmp_path: Path) -> None:
    rows = [received(0, 1000, 1500, 4000, handoff_ns=None, arrival_last_ns=1300), sent(0, 5000, None)]
    made, _ = join(rows, tmp_path)
    (r,) = made
    # Receive ends with the last arrival; transmit with the return of the send, 200 after its call.
    assert phases(r) == [300, 2700, 1000, 200]
    assert (r["handoff_ns"], r["driver_ns"], r["last_byte_ns"]) == (None, None, 1300)


def backend(conn: int, call: int, driver: int, **over: object) -> Row:
    """A request that the server sends to its database, from a separate port."""
    return sent(conn, call, driver, lport=50_000 + conn, rport=5432, raddr="10.0.0.9") | over


def result(conn: int, first: int, handoff: int, read: int, **over: object) -> Row:
    """The reply of the database."""
    return received(conn, first, handoff, read, lport=50_000 + conn, rport=5432, raddr="10.0.0.9") | over


def test_a_request_that_was_sent_lies_in_the_one_that_its_thread_works_on(tmp_path: Path) -> None:
    rows = [
        received(0, 1000, 1500, 2000),
        backend(7, 3000, 3200), result(7, 9000, 9100, 9500),
        backend(8, 9600, 9650), result(8, 10_000, 10_100, 10_200),
        sent(0, 11_000, 11_100),
        # One after the service has ended, and one by another thread.
        backend(7, 12_000, 12_100), result(7, 13_000, 13_100, 13_200),
        backend(9, 5000, 5100, tid=101), result(9, 6000, 6100, 6200, tid=101),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path)
    assert losses == {}
    top = next(r for r in made if r["role"] == "server")
    assert phases(top) == [500, 500, 9000, 100]
    of_conn = {(r["conn_id"], r["first_ns"]): r for r in made if r["role"] == "client"}
    assert {key: r["parent_request_id"] for key, r in of_conn.items()} == {
        (7, 3000): top["request_id"], (8, 9600): top["request_id"], (7, 12_000): None, (9, 5000): None,
    }  # fmt: skip
    first = of_conn[7, 3000]
    # Sent within 200, 5800 at the peer and on the way, 100 to the socket, 400 until it was read.
    assert phases(first) == [100, 400, 5800, 200]
    assert first["latency_ns"] == 6500


def test_sent_while_two_requests_are_in_hand_has_no_parent(tmp_path: Path) -> None:
    rows = [
        received(0, 0, 100, 200), received(1, 0, 100, 300),
        backend(7, 400, 500), result(7, 900, 950, 1000),
        sent(0, 1100, 1200), sent(1, 1300, 1400),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path)
    assert losses == {"requests_sent_in_several": 1}
    assert [r["parent_request_id"] for r in made] == [None] * 3


def test_who_asks_is_told_by_the_ports(tmp_path: Path) -> None:
    # The server's port is above its client's, but it has two peers.
    rows = [
        row
        for conn in (0, 1)
        for row in (
            received(conn, conn * 10, 100, 200, lport=60_000, rport=1024 + conn),
            sent(conn, 300 + conn, 400, lport=60_000, rport=1024 + conn),
        )
    ]
    made, losses = join(rows, tmp_path)
    assert ([r["role"] for r in made], losses) == (["server", "server"], {})
    # Two resolvers, both at port 53: the side that sends first is the client.
    alike = {"lport": 53, "rport": 53, "proto": 17}
    made, losses = join([sent(0, 300, 400, **alike), received(0, 900, 950, 1000, **alike)], tmp_path)
    assert [(r["role"], r["join"]) for r in made] == [("client", "udp")]
    assert losses == {"request_roles_by_first_message": 1}


def test_lone_connection_between_ports_that_clients_get_is_told_by_who_sends_first(tmp_path: Path) -> None:
    """A gRPC server at port 50051 whose only client has port 40000."""
    high = {"lport": 50_051, "rport": 40_000}
    made, losses = join([received(0, 0, 100, 200, **high), sent(0, 300, 400, **high)], tmp_path)
    assert [r["role"] for r in made] == ["server"]
    assert losses == {"request_roles_by_first_message": 1}


def test_datagrams_that_were_read_together_are_not_guessed(tmp_path: Path) -> None:
    def udp(row: Row) -> Row:
        return row | {"proto": 17}

    rows = [
        udp(received(0, 0, 10, 20)), udp(sent(0, 30, 40)),
        # Two requests before any reply, and one reply: it is unknown which request it answers.
        udp(received(0, 100, 110, 120)), udp(received(0, 101, 111, 130)), udp(sent(0, 140, 150)),
        # So this one may have got the other's reply.
        udp(received(0, 200, 210, 220)), udp(sent(0, 230, 240)),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path)
    assert [(r["join"], r["first_ns"], r["last_ns"], r["certain"]) for r in made] == [
        ("udp", 0, 40, True),
        ("udp", 200, 240, False),
    ]
    assert losses == {"requests_ambiguous": 2, "earlier_datagrams_unanswered": 1}


def framed(kind: str, row: Row, **over: int) -> Row:
    return row | {"request_type": kind} | over


def test_framed_requests_of_a_pipeline_are_joined_in_order(tmp_path: Path) -> None:
    rows = [
        # Three in one read, answered one by one; a fourth is read in between.
        *(framed("get", received(0, 10 * i, 100, 200, byte_start=i)) for i in range(3)),
        framed("VALUE", sent(0, 300, 350)),
        framed("set", received(0, 310, 320, 400)),
        *(framed("VALUE", sent(0, 500 + 100 * i, 550 + 100 * i)) for i in range(2)),
        framed("STORED", sent(0, 700, 750)),
    ]
    made, losses = join(rows, tmp_path, "memcached")
    assert losses == {}
    assert [(r["first_ns"], r["last_ns"], r["request_type"]) for r in made] == [
        (0, 350, "get"), (10, 550, "get"), (20, 650, "get"), (310, 750, "set"),
    ]  # fmt: skip
    assert {(r["join"], r["certain"]) for r in made} == {("framing:memcached", True)}


def test_requests_of_one_read_are_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    """The segment of the first one was sent again, and arrived last."""
    rows = [
        framed("get", received(0, 50, 100, 200, byte_start=0)),
        framed("set", received(0, 10, 100, 200, byte_start=9)),
        framed("VALUE", sent(0, 300, 350)), framed("STORED", sent(0, 400, 450)),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path, "memcached")
    assert losses == {}
    assert sorted((r["request_type"], r["first_send_ns"]) for r in made) == [("get", 300), ("set", 400)]


def test_behind_a_framed_request_without_reply_nothing_is_guessed(tmp_path: Path) -> None:
    rows = [framed("get", received(0, 0, 10, 20)), framed("END", sent(0, 30, 40))]
    # A set with noreply: from here on every reply would be assigned to the previous request.
    rows += [framed("set", received(0, 100, 110, 120))]
    for i in range(3):
        rows += [framed("get", received(0, 200 + 100 * i, 210 + 100 * i, 220 + 100 * i))]
        rows += [framed("END", sent(0, 230 + 100 * i, 240 + 100 * i))]
    # Another connection is not affected; its last two were read before any reply, and one has a reply.
    rows += [framed("get", received(1, 10 * i, 100, 200, byte_start=i)) for i in range(2)] + [
        framed("END", sent(1, 300, 310))
    ]
    made, losses = join(rows, tmp_path, "memcached")
    assert [(r["conn_id"], r["first_ns"], r["last_ns"]) for r in made] == [(0, 0, 40), (1, 0, 310)]
    assert losses == {"requests_ambiguous": 4, "requests_without_reply": 1}


def test_requests_that_ask_for_no_reply_take_none_from_others(tmp_path: Path) -> None:
    """memcached: set with noreply, then a get; both in one read, so that nothing but the protocol tells whose the reply is."""
    rows = []
    for conn, n in ((0, 1), (1, 3)):
        for i in range(n):
            at = 1000 * i
            rows += [framed("set-noreply", received(conn, at, at + 10, at + 20, byte_start=100 * i))]
            rows += [framed("get", received(conn, at + 1, at + 10, at + 20, byte_start=100 * i + 1))]
            rows += [framed("VALUE", sent(conn, at + 30, at + 40))]
    made, losses = join(rows, tmp_path, "memcached")
    assert [(r["conn_id"], r["request_type"], r["first_ns"], r["last_ns"]) for r in sorted(made, key=lambda r: r["conn_id"])] == [
        (0, "get", 1, 40), (1, "get", 1, 40), (1, "get", 1001, 1040), (1, "get", 2001, 2040),
    ]  # fmt: skip
    assert losses == {"requests_without_reply": 4}


@pytest.mark.parametrize("kind", ["getq", "mg-quiet"])
def test_replies_to_requests_that_may_stay_unanswered_are_not_guessed(tmp_path: Path, kind: str) -> None:
    """memcached: of two quiet gets and a noop, one get found nothing; another connection is not affected."""
    rows = [framed(kind, received(0, i, 10, 20, byte_start=i)) for i in range(2)]
    rows += [framed("noop", received(0, 2, 10, 20, byte_start=2))]
    rows += [framed(kind, sent(0, 30, 40)), framed("noop", sent(0, 50, 60))]
    rows += [framed("get", received(1, 0, 10, 20)), framed("END", sent(1, 30, 40))]
    made, losses = join(rows, tmp_path, "memcached")
    assert ([r["conn_id"] for r in made], losses) == ([1], {"requests_ambiguous": 3})


def test_pushes_of_redis_are_no_replies(tmp_path: Path) -> None:
    """RESP3: a message comes while a PING waits for its reply; the subscription was confirmed by a push, too."""
    rows = [
        framed("SUBSCRIBE", received(0, 0, 10, 20)), framed("push", sent(0, 30, 40)),
        framed("PING", received(0, 100, 110, 120)), framed("push", sent(0, 130, 140)), framed("status", sent(0, 150, 160)),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path, "redis")
    assert [(r["request_type"], r["first_ns"], r["last_ns"]) for r in made] == [("PING", 100, 160)]
    assert losses == {"replies_without_request": 2, "requests_without_reply": 1}


def test_behind_a_subscription_in_resp2_nothing_is_guessed(tmp_path: Path) -> None:
    """A message looks like a reply. What came before the subscription, and another connection, are joined."""
    rows = [
        framed("GET", received(0, 0, 10, 20)), framed("bulk", sent(0, 30, 40)),
        framed("SUBSCRIBE", received(0, 50, 60, 70)), framed("array", sent(0, 80, 90)),
        framed("PING", received(0, 100, 110, 120)), framed("array", sent(0, 130, 140)), framed("array", sent(0, 150, 160)),
        framed("GET", received(1, 100, 110, 120)), framed("array", sent(1, 130, 140)),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path, "redis")
    assert [(r["conn_id"], r["first_ns"]) for r in made] == [(0, 0), (1, 100)]
    assert losses == {"requests_ambiguous": 2}


def test_what_is_answered_on_a_stream_is_the_reply_to_what_was_asked_on_it(tmp_path: Path) -> None:
    rows = [
        *(framed("GET", received(0, 10 * i, 100, 200, byte_start=i), stream_id=2 * i + 1) for i in range(3)),
        framed("200", sent(0, 300, 350), stream_id=5),
        framed("200", sent(0, 400, 450), stream_id=1),
        framed("200", sent(0, 500, 550), stream_id=3),
        # The same stream numbers on another connection; one is answered before it is complete.
        framed("200", sent(1, 20, 90), stream_id=1),
        framed("POST", received(1, 30, 60, 100), stream_id=1),
        # A reply without a request, a request without a reply, and a request with two replies.
        framed("200", sent(1, 200, 250), stream_id=2),
        framed("GET", received(1, 300, 310, 320), stream_id=7),
        framed("GET", received(1, 400, 410, 420), stream_id=9),
        *(framed("200", sent(1, 430 + i, 450 + i), stream_id=9) for i in range(2)),
    ]
    made, losses = join(rows, tmp_path, "http2")
    assert [(r["conn_id"], r["first_ns"], r["last_send_ns"]) for r in made] == [
        (0, 0, 400), (0, 10, 500), (0, 20, 300), (1, 30, 20),
    ]  # fmt: skip
    assert {(r["join"], r["certain"]) for r in made} == {("framing:http2", True)}
    del losses["request_timestamps_out_of_order"]  # from the one that was answered early
    assert losses == {"replies_without_request": 1, "requests_without_reply": 1, "requests_ambiguous": 1}


def test_interim_replies_of_http_are_none(tmp_path: Path) -> None:
    rows = [
        framed("POST", received(0, 0, 100, 200)), framed("100", sent(0, 250, 260)), framed("200", sent(0, 900, 950)),
        framed("GET", received(0, 1000, 1100, 1200)), framed("200", sent(0, 1300, 1350)),
    ]  # fmt: skip
    made, losses = join(rows, tmp_path, "http")
    assert ([(r["first_ns"], r["last_ns"]) for r in made], losses) == ([(0, 950), (1000, 1350)], {})


def test_a_call_without_frame_in_a_framed_connection_is_counted_and_in_no_request(tmp_path: Path) -> None:
    rows = [
        framed("GET", received(0, 0, 100, 200)),
        framed("200", sent(0, 300, 350)),
        received(0, 900, 950, 990),
    ]
    made, losses = join(rows, tmp_path, "http")
    assert [(r["join"], r["first_ns"], r["last_ns"]) for r in made] == [("framing:http", 0, 350)]
    assert losses == {"messages_without_frame": 1}


def test_connections_without_frames_alternate_beside_framed_ones(tmp_path: Path) -> None:
    rows = [
        framed("GET", received(0, 0, 100, 200)),
        framed("200", sent(0, 300, 350)),
        received(1, 0, 100, 200),
        sent(1, 400, 450),
    ]
    made, _ = join(rows, tmp_path, "http")
    assert {r["conn_id"]: r["join"] for r in made} == {0: "framing:http", 1: "alternation"}


STAMP = st.integers(0, 1 << 60)


@st.composite
def messages(draw: st.DrawFn) -> list[Row]:
    """Messages of a few connections, with timestamps in any order and some missing."""
    rows = []
    for _ in range(draw(st.integers(0, 12))):
        conn, a, b, c = draw(st.integers(0, 2)), draw(STAMP), draw(STAMP), draw(STAMP)
        more = {"proto": 6 if conn < 2 else 17, "tid": draw(st.integers(1, 2))}
        if draw(st.booleans()):
            row = received(conn, min(a, c), draw(st.sampled_from([b, None])) or c, c) | more  # type: ignore[type-var]
        else:
            row = sent(conn, a, draw(st.sampled_from([max(a, b), None]))) | more
        if draw(st.booleans()):
            row |= {"lport": 50_000, "rport": 80}
        rows.append(row)
    return rows


@settings(max_examples=60)
@given(messages())
def test_phases_add_up_and_each_message_is_in_one_request(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    made, losses = join(rows, tmp_path_factory.mktemp("property"))
    for r in made:
        assert sum(phases(r)) == r["latency_ns"] == r["last_ns"] - r["first_ns"]
        assert min(phases(r)) >= 0
        assert r["n_messages"] > 0 < r["n_reply_messages"]
    if {row["direction"] for row in rows} == {"rx", "tx"}:
        missing = (
            "messages_one_way",
            "requests_without_reply",
            "replies_without_request",
            "requests_ambiguous",
        )
        joined = sum(r["n_messages"] + r["n_reply_messages"] for r in made)
        # Replies to ambiguous datagrams are not in any row either.
        ambiguous = losses.get("requests_ambiguous", 0)
        counted = joined + sum(losses.get(key, 0) for key in missing)
        assert counted == len(rows) if not ambiguous else counted <= len(rows)
