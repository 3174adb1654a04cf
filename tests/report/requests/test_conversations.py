# SPDX-License-Identifier: GPL-2.0-only
"""Unusual but allowed turns of each protocol: every reply belongs to its request, and what cannot be known is not called certain."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from conversations import Said, talk

GET, OK = b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
POST = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n"
PROPFIND = b"PROPFIND / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n5;x=y\r\nHTTP/\r\n0\r\nTrailer: x\r\n\r\n"
HEAD, NO_BODY = b"HEAD / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"
NOT_MODIFIED = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"
CONNECT, UPGRADE = b"CONNECT a:443 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"

HTTP: dict[str, tuple[list[Said], list[tuple[int, int, str]]]] = {
    "chunks in a pipeline": (
        [("C", GET + HEAD), ("C", GET), ("S", CHUNKS + NO_BODY), ("S", CHUNKS), ("C", GET), ("S", OK)],
        [(0, 2, "GET"), (0, 2, "HEAD"), (1, 3, "GET"), (4, 5, "GET")],
    ),
    "100 requests and then a HEAD": (
        [("C", GET * 100 + HEAD), ("S", OK * 100 + NO_BODY), ("C", GET), ("S", OK)],
        [(0, 1, "GET")] * 100 + [(0, 1, "HEAD"), (2, 3, "GET")],
    ),
    "no body": ([("C", GET), ("S", NOT_MODIFIED), ("C", GET), ("S", OK)], [(0, 1, "GET"), (2, 3, "GET")]),
    "a method of WebDAV": (
        [("C", PROPFIND), ("C", GET), ("S", OK), ("S", OK)],
        [(0, 2, "PROPFIND"), (1, 3, "GET")],
    ),
    "answered before it was read as a whole": (
        [("C", POST + b"ab"), ("S", OK), ("C", b"cd"), ("C", GET), ("S", OK)],
        [(2, 1, "POST"), (3, 4, "GET")],
    ),
    "an empty line behind a body": (
        [("C", POST + b"abcd\r\n"), ("S", OK), ("C", GET), ("S", OK)],
        [(0, 1, "POST"), (2, 3, "GET")],
    ),
    # A tunnel is no reply of one long transmission; its few bytes are no HTTP, whatever they look like.
    "a tunnel": (
        [("C", GET), ("S", OK), ("C", CONNECT), ("S", NO_BODY), ("C", GET), ("S", OK)],
        [(0, 1, "GET"), (2, 3, "CONNECT")],
    ),
    "a WebSocket": (
        [("C", GET), ("S", OK), ("C", UPGRADE), ("S", SWITCHED), ("S", b"\x81\x03abc"), ("C", GET)],
        [(0, 1, "GET"), (2, 3, "GET")],
    ),
}  # fmt: skip


def pg(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


START = pg(b"", struct.pack("!I", 196608) + b"user\0pg\0\0")
READY, DONE, ERROR = pg(b"Z", b"I"), pg(b"C", b"SELECT 1\0"), pg(b"E", b"SERROR\0\0")
BEGUN: list[Said] = [("C", START), ("S", pg(b"R", bytes(4)) + READY)]
EXTENDED = pg(b"P", b"\0copy t from stdin\0\0\0") + pg(b"B", bytes(9)) + pg(b"E", bytes(5))
COPY_IN, ROW, END, SYNC = pg(b"G", bytes(3)), pg(b"d", b"1\n"), pg(b"c"), pg(b"S")
QUERY = pg(b"Q", b"select 1\0")
NOTIFICATION = pg(b"A", bytes(4) + b"a\0\0")

POSTGRES: dict[str, tuple[list[Said], list[tuple[int, int, str]]]] = {
    "COPY by the extended protocol": (
        [*BEGUN, ("C", EXTENDED + SYNC), ("S", pg(b"1") + pg(b"2") + COPY_IN), ("C", ROW + END + SYNC), ("S", DONE + READY),
         ("C", QUERY), ("S", DONE + READY)],
        [(0, 1, "startup"), (2, 3, "COPY"), (4, 5, "copy"), (6, 7, "SELECT")],
    ),
    "COPY that fails in the middle": (
        [*BEGUN, ("C", pg(b"Q", b"copy t from stdin\0")), ("S", COPY_IN), ("C", ROW), ("S", ERROR + READY), ("C", ROW + END),
         ("C", QUERY), ("S", DONE + READY)],
        [(0, 1, "startup"), (2, 3, "COPY"), (6, 5, "copy"), (7, 8, "SELECT")],
    ),
    "Flush before the Sync": (
        [*BEGUN, ("C", pg(b"P", b"\0select 1\0\0\0") + pg(b"H")), ("S", pg(b"1")), ("C", pg(b"B", bytes(9)) + SYNC), ("S", pg(b"2") + READY),
         ("C", QUERY), ("S", DONE + READY)],
        [(0, 1, "startup"), (4, 3, "SELECT"), (6, 7, "SELECT")],
    ),
    "notifications": (
        [*BEGUN, ("C", QUERY), ("S", DONE + READY), ("S", NOTIFICATION), ("C", QUERY), ("S", DONE + NOTIFICATION + READY)],
        [(0, 1, "startup"), (2, 3, "SELECT"), (5, 6, "SELECT")],
    ),
    "an error that ends the connection": ([*BEGUN, ("C", QUERY), ("S", ERROR)], [(0, 1, "startup"), (2, 3, "SELECT")]),
    "a goodbye": ([*BEGUN, ("C", QUERY + pg(b"X")), ("S", DONE + READY)], [(0, 1, "startup"), (2, 3, "SELECT")]),
}  # fmt: skip


def redis(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


PING, PONG = redis(b"PING"), b"+PONG\r\n"
REDIS: dict[str, tuple[list[Said], list[tuple[int, int, str]]]] = {
    "a transaction": (
        [("C", redis(b"MULTI") + redis(b"GET", b"k") + redis(b"EXEC")), ("S", b"+OK\r\n+QUEUED\r\n*1\r\n$1\r\nv\r\n"), ("C", PING), ("S", PONG)],
        [(0, 1, "MULTI"), (0, 1, "GET"), (0, 1, "EXEC"), (2, 3, "PING")],
    ),
    "a command that blocks": (
        [("C", redis(b"BLPOP", b"k", b"1")), ("S", b"*-1\r\n"), ("C", PING), ("S", PONG)],
        [(0, 1, "BLPOP"), (2, 3, "PING")],
    ),
    "commands without words": (
        [("C", b"\r\n"), ("C", b"*0\r\n" + PING), ("S", PONG), ("C", PING), ("S", PONG)],
        [(1, 2, "PING"), (3, 4, "PING")],
    ),
    # What redis 7.0.15 answered.
    "replies turned off": (
        [("C", PING), ("S", PONG), ("C", redis(b"CLIENT", b"REPLY", b"OFF")), ("C", PING + redis(b"client", b"reply", b"skip")), ("C", PING),
         ("C", redis(b"CLIENT", b"REPLY", b"ON")), ("S", b"+OK\r\n"), ("C", PING), ("S", PONG)],
        [(0, 1, "PING"), (5, 6, "CLIENT-reply-on"), (7, 8, "PING")],
    ),
    "replies skipped": (
        [("C", redis(b"CLIENT", b"REPLY", b"SKIP") + redis(b"SET", b"k", b"v") + PING), ("S", PONG), ("C", b"CLIENT REPLY SKIP\r\n"),
         ("C", redis(b"CLIENT", b"REPLY", b"SKIP")), ("C", PING), ("C", PING), ("S", PONG)],
        [(0, 1, "PING"), (5, 6, "PING")],
    ),
    "an argument called REPLY": (
        [("C", redis(b"CLIENT", b"SETNAME", b"OFF")), ("S", b"+OK\r\n"), ("C", redis(b"CLIENT", b"REPLY" * 9, b"REPLY", b"OFF")), ("S", b"-ERR\r\n"),
         ("C", PING), ("S", PONG)],
        [(0, 1, "CLIENT"), (2, 3, "CLIENT"), (4, 5, "PING")],
    ),
    "replies off until a reset": (
        [("C", redis(b"CLIENT", b"REPLY", b"OFF") + PING), ("C", redis(b"RESET")), ("S", b"+RESET\r\n"), ("C", PING), ("S", PONG)],
        [(1, 2, "RESET"), (3, 4, "PING")],
    ),
    "what a replica is sent": (
        [("C", PING), ("S", PONG), ("C", redis(b"PSYNC", b"?", b"-1")), ("S", b"+FULLRESYNC x 0\r\n"), ("S", PING), ("C", redis(b"REPLCONF")), ("S", PING)],
        [(0, 1, "PING")],
    ),
}  # fmt: skip


def binary(magic: int, opcode: int, key: bytes = b"") -> bytes:
    return struct.pack("!BBHBBHIIQ", magic, opcode, len(key), 0, 0, 0, len(key), 0, 0) + key


STATISTICS = binary(0x81, 16, b"pid") + binary(0x81, 16, b"uptime") + binary(0x81, 16)
MEMCACHED: dict[str, tuple[list[Said], list[tuple[int, int, str]]]] = {
    "statistics in the binary protocol": (
        [("C", binary(0x80, 16) + binary(0x80, 0, b"k")), ("S", STATISTICS), ("S", binary(0x81, 0))],
        [(0, 1, "stat"), (0, 2, "get")],
    ),
    "several keys": (
        [("C", b"get a b\r\nget c\r\n"), ("S", b"VALUE a 0 5\r\nEND\r\n\r\nEND\r\n"), ("S", b"END\r\n")],
        [(0, 1, "get"), (0, 2, "get")],
    ),
}  # fmt: skip


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


PREFACE, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frame(4, 0, 0)
HTTP2: dict[str, tuple[list[Said], list[tuple[int, int, str]]]] = {
    # Calls with nothing but the connection's own frames are more than those with messages, and are no request.
    "one call of gRPC": (
        [("C", PREFACE + SETTINGS), ("S", SETTINGS), ("C", frame(4, 1, 0)), ("C", frame(1, 0, 1, b"\x83\x86") + frame(9, 4, 1, b"xx") + frame(0, 1, 1, b"x")),
         ("S", frame(4, 1, 0)), ("S", frame(1, 4, 1, b"\x88") + frame(0, 0, 1, b"y") + frame(1, 5, 1, b"\x40\x0bgrpc-status\x010"))],
        [(3, 5, "POST")],
    ),
    "many streams": (
        [("C", PREFACE + b"".join(frame(1, 5, 2 * i + 1, b"\x82") for i in range(200))), ("S", b"".join(frame(1, 5, 2 * i + 1, b"\x88") for i in reversed(range(200))))],
        [(0, 1, "GET")] * 200,
    ),
}  # fmt: skip

#: Packet boundaries do not matter.
BY_BYTE = (
    "chunks in a pipeline", "COPY by the extended protocol", "a transaction", "statistics in the binary protocol", "one call of gRPC",
)  # fmt: skip

EVERY = [
    pytest.param(protocol, *case, by_byte, id=f"{protocol}, {name}{', by byte' * by_byte}")
    for protocol, cases in (
        ("http", HTTP), ("postgres", POSTGRES), ("redis", REDIS), ("memcached", MEMCACHED), ("http2", HTTP2),
    )
    for name, case in cases.items()
    for by_byte in (False, True)
    if not by_byte or name in BY_BYTE
]  # fmt: skip


def test_replies_that_were_off_before_the_recording_shift_nothing(tmp_path: Path) -> None:
    """Four requests without replies, then the setting that has one; its reply is the first in the recording."""
    on = redis(b"CLIENT", b"REPLY", b"ON")
    said = [("C", redis(b"CLIENT", b"REPLY", b"OFF")), *[("C", PING)] * 4, ("C", on), ("S", b"+OK\r\n"), ("C", PING), ("S", PONG)]  # fmt: skip
    found, losses = talk("redis", said, tmp_path, begin=1)
    assert (found, losses) == ([(7, 8, "PING", True)], {"requests_ambiguous": 5})


def test_replies_turned_off_in_a_transaction_make_the_rest_unclear(tmp_path: Path) -> None:
    """EXEC changes the setting in the middle of its own reply: the framing of requests ends there."""
    said = [
        ("C", PING), ("S", PONG), ("C", redis(b"MULTI") + redis(b"CLIENT", b"REPLY", b"OFF") + redis(b"EXEC")), ("S", b"+OK\r\n+QUEUED\r\n*1\r\n"),
        ("C", PING), ("C", redis(b"CLIENT", b"REPLY", b"ON")), ("S", b"+OK\r\n"), ("C", PING), ("S", PONG),
    ]  # fmt: skip
    found, _ = talk("redis", said, tmp_path)
    assert not [of for of in found if of[3] and of[0] > 1]


@pytest.mark.parametrize(("protocol", "said", "expected", "by_byte"), EVERY)
def test_replies_belong_to_their_requests(
    protocol: str, said: list[Said], expected: list[tuple[int, int, str]], by_byte: bool, tmp_path: Path
) -> None:
    found, _ = talk(protocol, said, tmp_path, by_byte)
    assert [(ask, answer, kind) for ask, answer, kind, _ in found] == expected
    assert all(certain for *_, certain in found)


def test_where_a_packet_is_missing_no_reply_is_guessed(tmp_path: Path) -> None:
    two: list[Said] = [("C", GET), ("C", GET), ("S", OK), ("S", OK)]
    more: list[Said] = [("C", GET), ("S", OK)]
    # The first reply has no frame. The second reply must not be joined to the first request.
    found, losses = talk("http", two, tmp_path, lost=frozenset([2]))
    assert found == []
    assert losses == {"requests_ambiguous": 2, "messages_without_frame": 1, "replies_without_request": 1}
    # The first request has no frame. The first reply must not be joined to the second request.
    found, losses = talk("http", two, tmp_path, lost=frozenset([0]))
    assert found == []
    assert losses == {"requests_ambiguous": 1, "messages_without_frame": 1, "replies_without_request": 1}
    found, losses = talk("http", more + more + more, tmp_path, lost=frozenset([2]))
    assert found == [(0, 1, "GET", True), (4, 5, "GET", False)]
    assert losses == {
        "messages_without_frame": 1, "replies_without_request": 1, "requests_near_unknown_messages": 1,
    }  # fmt: skip


def test_a_reply_to_what_was_asked_before_the_recording_makes_those_before_it_uncertain(
    tmp_path: Path,
) -> None:
    """Two requests are always on their way; the recording begins behind the first. So each seems to have the other's reply."""
    turn: list[Said] = [("C", GET), ("S", OK)]
    found, losses = talk("http", [("C", GET), *turn * 3, ("S", OK)], tmp_path, begin=1)
    assert found == [(1, 2, "GET", False), (3, 4, "GET", False), (5, 6, "GET", False)]
    assert losses == {"replies_without_request": 1, "requests_near_unknown_messages": 3}
    # Three: now two are seen together, which a client that waits for replies never does.
    found, losses = talk("http", [("C", GET), ("C", GET + GET), *[("S", OK)] * 3], tmp_path, begin=1)
    assert (found, losses) == ([], {"requests_ambiguous": 2, "replies_without_request": 1})
