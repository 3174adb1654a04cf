# SPDX-License-Identifier: GPL-2.0-only
"""Messages of HTTP/2: what one side sends on a stream, wherever frames of other streams are."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from event_builder import CLIENT, SERVER, Recording
from machinery.load.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from nsight_report.lifetimes import LifetimeOptions
from nsight_report.lifetimes.frames import Frames, load
from nsight_report.losses import Ledger
from pcap_bytes import SYN, packet, pcap

GET, POST, OK, NOT_FOUND = b"\x82", b"\x83", b"\x88", b"\x8d"  # RFC 7541, appendix A
REST = b"\x86\x84\x41\x01a"  # scheme, path, authority


def ask(stream: int, fields: bytes = GET + REST, flags: int = END_STREAM | END_HEADERS) -> bytes:
    return frame(HEADERS, stream, fields, flags)


def connection(
    client: bytes = b"", server: bytes = b"", size: int = 1000, seed: int | None = None
) -> list[bytes]:
    """Packets of both directions, with ``size`` bytes each, or with random sizes drawn from ``seed``."""
    packets = [packet(CLIENT, SERVER, 999, b"", SYN), packet(SERVER, CLIENT, 499, b"", SYN | 0x10)]
    draw = random.Random(seed)
    for source, target, seq, stream in ((CLIENT, SERVER, 1000, client), (SERVER, CLIENT, 500, server)):
        at = 0
        while at < len(stream):
            n = size if seed is None else draw.randint(1, 40)
            packets.append(packet(source, target, seq + at, stream[at : at + n]))
            at += n
    return packets


def framed(tmp_path: Path, packets: list[bytes]) -> tuple[Frames, Ledger]:
    path = tmp_path / "payload.pcap"
    path.write_bytes(pcap(packets))
    ledger = Ledger("lifetimes")
    return load(path, "http2", ledger), ledger


Message = tuple[int, int, int, int, str]


def messages(tmp_path: Path, packets: list[bytes], of: tuple[str, int] = CLIENT) -> list[Message]:
    """(stream, offset, length, own bytes, type) in the order in which they ended."""
    found, _ = framed(tmp_path, packets)
    return [
        (int(k), int(o), int(n), int(b), found.types[t])
        for s, k, o, n, b, t in zip(
            found.stream, found.key, found.offset, found.length, found.nbytes, found.type, strict=True
        )
        if found.source[s] == of
    ]


def test_a_request_is_what_the_client_sends_on_a_stream(tmp_path: Path) -> None:
    one = ask(1)  # 9 + 6 bytes
    # Two concurrent streams; the later one ends first.
    three = frame(HEADERS, 3, POST + REST, END_HEADERS)  # 15
    five = ask(5)
    body = (
        frame(DATA, 3, bytes(20)) + frame(WINDOW_UPDATE, 0, bytes(4)) + frame(DATA, 3, bytes(7), END_STREAM)
    )  # 29 + 13 + 16
    begin = PREFACE + frame(SETTINGS, 0, bytes(12))  # 24 + 21
    stream = begin + one + three + five + frame(PING, 0, bytes(8)) + body
    expected = [
        (1, 45, 15, 15, "GET"),
        (5, 75, 15, 15, "GET"),
        (3, 60, 15 + 15 + 17 + 29 + 13 + 16, 15 + 29 + 16, "POST"),
    ]
    for seed in (None, *range(20)):
        assert messages(tmp_path, connection(stream, seed=seed)) == expected


def test_headers_may_go_on_be_padded_and_have_a_priority(tmp_path: Path) -> None:
    fields = POST + REST * 10
    head = frame(HEADERS, 1, b"\x02" + bytes(5) + fields[:5] + bytes(2), END_STREAM | PADDED | HAS_PRIORITY)
    stream = (
        PREFACE
        + head
        + frame(CONTINUATION, 1, fields[5:20])
        + frame(CONTINUATION, 1, fields[20:], END_HEADERS)
    )
    n = len(stream) - 24
    for seed in (None, *range(20)):
        assert messages(tmp_path, connection(stream, seed=seed)) == [(1, 24, n, n, "POST")]


STATUS = {
    OK: "200",
    NOT_FOUND: "404",
    b"\x48\x03302": "302",  # :status, a literal
    b"\x08\x03503": "503",
    b"\x48\x82\x64\x02": "302",  # RFC 7541, C.6.1: Huffman code
    b"\x48\x83\x64\x0e\xff": "307",  # C.6.2
    b"\x48\x82\x10\x01": "200",
    b"\xbe": "other",  # from the table that the connection built up
    b"\x20" + OK: "200",  # a new size of that table
    b"\x48\x82\x64": "other",  # cut
    b"\x48\x03\x01\x02\x03": "other",  # no digits
}


@pytest.mark.parametrize(("fields", "status"), STATUS.items())
def test_status_is_told_where_the_fields_begin_with_it(tmp_path: Path, fields: bytes, status: str) -> None:
    answer = frame(SETTINGS, 0) + frame(HEADERS, 1, fields, END_STREAM | END_HEADERS)
    assert messages(tmp_path, connection(server=answer), SERVER) == [
        (1, 9, 9 + len(fields), 9 + len(fields), status)
    ]


def test_interim_replies_and_trailers_are_of_the_reply(tmp_path: Path) -> None:
    answer = frame(HEADERS, 1, b"\x08\x03103", END_HEADERS) + frame(
        HEADERS, 1, OK + b"\x5f\x01x", END_HEADERS
    )
    answer += frame(DATA, 1, bytes(5)) + frame(HEADERS, 1, b"\x40\x01a\x01b", END_HEADERS | END_STREAM)
    assert messages(tmp_path, connection(server=answer), SERVER) == [(1, 0, len(answer), len(answer), "200")]


def test_a_stream_that_is_reset_has_no_message_and_is_counted(tmp_path: Path) -> None:
    stream = PREFACE + frame(HEADERS, 1, POST, END_HEADERS) + ask(3) + frame(RST_STREAM, 1, bytes(4)) + ask(5)
    packets = connection(stream)
    assert [m[0] for m in messages(tmp_path, packets)] == [3, 5]
    assert framed(tmp_path, packets)[1].table().to_pandas().set_index("cause")["count"].to_dict() == {
        "framing: unfinished": 1
    }


def test_what_a_missing_packet_held_is_not_guessed(tmp_path: Path) -> None:
    first, lost, second = PREFACE + frame(HEADERS, 1, POST, END_HEADERS), ask(3), ask(5)
    packets = connection(first + lost + second * 300, size=1)
    cut = [packets[0], packet(CLIENT, SERVER, 1000, first)]
    at = 1000 + len(first) + len(lost)
    for stream in range(5, 1205, 2):
        cut.append(packet(CLIENT, SERVER, at, ask(stream)))
        at += len(second)
    found = messages(tmp_path, cut)
    # The open stream might have ended in the missing part.
    assert [m[0] for m in found] == list(range(5, 1205, 2))


def test_bytes_within_a_frame_that_the_recorder_cut_off_do_not_matter(tmp_path: Path) -> None:
    stream = PREFACE + frame(HEADERS, 1, POST, END_HEADERS) + frame(DATA, 1, bytes(600), END_STREAM) + ask(3)
    n = len(stream) - 24 - 15
    path = tmp_path / "payload.pcap"
    whole = packet(CLIENT, SERVER, 1000, stream[:-15])
    tail = packet(CLIENT, SERVER, 1000 + len(stream) - 15, stream[-15:])
    kept = [packet(CLIENT, SERVER, 999, b"", SYN), whole[:200], tail]
    lengths = [len(kept[0]), len(whole), len(tail)]
    head = pcap([])
    path.write_bytes(
        head
        + b"".join(struct.pack("<IIII", i, 0, len(p), n) + p for i, (p, n) in enumerate(zip(kept, lengths)))
    )
    found = load(path, "http2", Ledger("lifetimes"))
    assert list(zip(found.key.tolist(), found.length.tolist(), strict=True)) == [(1, n), (3, 15)]


@pytest.mark.parametrize("n", [256, 300])
def test_streams_that_are_open_at_once_are_limited_and_counted(tmp_path: Path, n: int) -> None:
    heads = b"".join(frame(HEADERS, 2 * i + 1, POST, END_HEADERS) for i in range(n))
    ends = b"".join(frame(DATA, 2 * i + 1, b"", END_STREAM) for i in range(n))
    packets = connection(PREFACE + heads + ends)
    assert [m[0] for m in messages(tmp_path, packets)] == [2 * i + 1 for i in range(256)]
    _, ledger = framed(tmp_path, packets)
    counted = ledger.table().to_pandas().set_index("cause")["count"].to_dict()
    assert counted == ({"framing: streams refused": n - 256} if n > 256 else {})


@pytest.mark.parametrize(
    "wrong",
    [
        frame(SETTINGS, 1),
        frame(HEADERS, 0, GET),
        frame(PING, 0, bytes(7)),
        frame(0x20, 1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_frame_is_skipped_to_where_one_begins(tmp_path: Path, wrong: bytes) -> None:
    packets = [packet(CLIENT, SERVER, 999, b"", SYN), packet(CLIENT, SERVER, 1000, PREFACE + wrong)]
    packets.append(packet(CLIENT, SERVER, 1000 + len(PREFACE + wrong), ask(7)))
    assert [m[0] for m in messages(tmp_path, packets)] == [7]


def test_messages_that_overlap_keep_their_own_times_and_bytes(tmp_path: Path) -> None:
    three, five, end = frame(HEADERS, 3, POST, END_HEADERS), ask(5, GET), frame(DATA, 3, b"xy", END_STREAM)
    stream = three + five + end  # 10 + 10 + 11
    recording = Recording()
    for at, ns in ((0, 100), (10, 200), (20, 300)):
        n = 11 if at == 20 else 10
        recording.arrive(ns, 1000 + at, n).hand_off(ns + 10, 1000 + at + n).read(ns + 50, 1000 + at, n)
    path = tmp_path / "payload.pcap"
    packets = [packet(CLIENT, SERVER, 999, b"", SYN)]
    packets += [packet(CLIENT, SERVER, 1000, stream)]
    path.write_bytes(pcap(packets))
    made, _ = recording.build(LifetimeOptions(framing="http2", payload=path))
    told = {
        m["stream_id"]: (
            m["first_ns"],
            m["app_ns"],
            m["byte_start"],
            m["byte_end"],
            m["nbytes"],
            m["n_reads"],
            m["request_type"],
        )
        for m in made
    }
    assert told == {3: (100, 350, 0, 31, 21, 3, "POST"), 5: (200, 250, 10, 20, 10, 1, "GET")}
