# SPDX-License-Identifier: GPL-2.0-only
"""Messages at the boundaries of the protocol."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from pathlib import Path

import pytest
from event_builder import CLIENT, SERVER, Recording
from machinery.harness import built
from machinery.load import http2
from nsight_report.capture import native
from nsight_report.errors import BadInput
from nsight_report.lifetimes import LifetimeOptions
from nsight_report.lifetimes.frames import load
from nsight_report.losses import Ledger
from pcap_bytes import ACK, SYN, packet, pcap

NATIVE = Path(native.__file__).parents[2] / "native"
GET = b"get key\r\n"  # 9 bytes
SET = b"set key 0 0 10\r\n0123456789\r\n"  # 16 + 12 = 28 bytes


def requests(*payloads: bytes, seq: int = 1000) -> list[bytes]:
    """A SYN and one packet for each payload, from the client to the server."""
    packets = [packet(CLIENT, SERVER, seq - 1, b"", SYN)]
    for payload in payloads:
        packets.append(packet(CLIENT, SERVER, seq, payload))
        seq += len(payload)
    return packets


def framed(tmp_path: Path, protocol: str, packets: list[bytes], **how: object) -> list[tuple[int, int, str]]:
    """(offset, length, type) of the messages from the client."""
    path = tmp_path / "payload.pcap"
    path.write_bytes(pcap(packets, **how))
    frames = load(path, protocol, Ledger("lifetimes"))
    types = [frames.types[t] for t in frames.type]
    return [
        (int(o), int(n), t)
        for s, o, n, t in zip(frames.stream, frames.offset, frames.length, types)
        if frames.source[s] == CLIENT
    ]


def rows(tmp_path: Path, recording: Recording, packets: list[bytes], protocol: str = "memcached"):
    path = tmp_path / "payload.pcap"
    path.write_bytes(pcap(packets))
    return recording.build(LifetimeOptions(framing=protocol, payload=path))


def test_memcached_text_requests_end_where_the_protocol_says(tmp_path):
    assert framed(tmp_path, "memcached", requests(GET + SET, GET)) == [
        (0, 9, "get"),
        (9, 28, "set"),
        (37, 9, "get"),
    ]


def test_memcached_binary_requests_have_their_length_in_the_header(tmp_path):
    # Header of 24 bytes: magic, opcode (0 get, 1 set), key length, extras length, ..., body length.
    get = struct.pack("!BBHBBHIIQ", 0x80, 0, 3, 0, 0, 0, 3, 0, 0) + b"key"
    store = struct.pack("!BBHBBHIIQ", 0x80, 1, 3, 8, 0, 0, 15, 0, 0) + bytes(8) + b"keyabcd"
    found = framed(tmp_path, "memcached", requests(get + store[:30], store[30:]))
    assert [(o, n) for o, n, _ in found] == [(0, 27), (27, 39)]


def test_memcached_requests_that_are_not_answered_have_a_type_of_their_own(tmp_path: Path) -> None:
    """A key may be called noreply, too; a line longer than what is kept of it may lack the word."""
    quiet = [
        b"set key 0 0 1 noreply\r\nx\r\n",
        b"cas key 0 0 1 9 noreply\r\nx\r\n",
        b"delete key noreply\r\n",
        b"flush_all noreply\r\n",
    ]
    named = [b"get noreply\r\n", b"delete noreply\r\n", b"set noreply 0 0 7\r\nnoreply\r\n", b"mg q v\r\n"]
    meta = [b"mg key v q\r\n", b"ms key 2 q\r\nab\r\n", b"mn\r\n"]
    found = framed(tmp_path, "memcached", requests(*quiet, *named, *meta))
    assert [t for _, _, t in found] == [
        "set-noreply", "cas-noreply", "delete-noreply", "flush_all-noreply", "get", "delete", "set", "mg", "mg-quiet", "ms-quiet", "mn",
    ]  # fmt: skip


def test_wrong_memcached_header_is_forgotten_with_its_message(tmp_path):
    # The protocol has no opcode 0x1f; each of the hundreds of segments after it begins with a message.
    header = struct.pack("!BBHBBHIIQ", 0x80, 0x1F, 3, 0, 0, 0, 3, 0, 0)
    found = framed(tmp_path, "memcached", requests(header, *[GET] * 800))
    assert [(o, n) for o, n, _ in found] == [(24 + 9 * i, 9) for i in range(800)]


def test_memcached_header_that_a_missing_packet_cuts_is_not_continued(tmp_path):
    get = struct.pack("!BBHBBHIIQ", 0x80, 0, 3, 0, 0, 0, 3, 0, 0) + b"key"  # 27 bytes
    packets = requests(get + get[:14], get[14:], *[get] * 300)
    del packets[2]
    found = framed(tmp_path, "memcached", packets)
    assert [(o, n) for o, n, _ in found] == [(0, 27), *((54 + 27 * i, 27) for i in range(300))]


def test_memcached_keys_may_be_utf8(tmp_path):
    get = "get \u00e9\r\n".encode()  # 8 bytes
    assert framed(tmp_path, "memcached", requests(get, SET)) == [(0, 8, "get"), (8, 28, "set")]


def test_redis_arrays_nest_and_inline_commands_end_with_the_line(tmp_path):
    ping = b"*1\r\n$4\r\nPING\r\n"  # 14 bytes
    store = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n"  # 4+9+7+11 = 31 bytes
    found = framed(tmp_path, "redis", requests(ping + store[:20], store[20:] + ping))
    assert [(o, n, t.upper()) for o, n, t in found] == [(0, 14, "PING"), (14, 31, "SET"), (45, 14, "PING")]


def postgres(kind: bytes, body: bytes) -> bytes:
    """A message of PostgreSQL's protocol; a client's first message has no type."""
    return kind + struct.pack("!I", len(body) + 4) + body


PG_STARTUP = postgres(b"", struct.pack("!I", 196608) + b"user\0pg\0\0")  # 4 + 4 + 9 = 17 bytes


def test_postgres_requests_end_where_the_server_answers(tmp_path):
    query = postgres(b"Q", b"update t set v = 1\0")  # 5 + 19 = 24 bytes
    # Parse, Bind, Execute and Sync are one request; the next one uses what was parsed before.
    parsed = postgres(b"P", b"name\0select 1\0\0\0") + postgres(b"B", bytes(9)) + postgres(b"E", bytes(5))
    again = postgres(b"B", bytes(9)) + postgres(b"E", bytes(5)) + postgres(b"S", b"")
    whole = PG_STARTUP + query + parsed + postgres(b"S", b"") + again + postgres(b"X", b"")
    at = [0, 17, 41, 41 + len(parsed) + 5]
    expected = [
        (at[0], 17, "startup"),
        (at[1], 24, "UPDATE"),
        (at[2], len(parsed) + 5, "SELECT"),
        (at[3], len(again), "EXECUTE"),
        (at[3] + len(again), 5, "terminate"),
    ]
    assert framed(tmp_path, "postgres", requests(whole)) == expected
    # The packet boundaries do not matter.
    for step in (1, 3, 7):
        cut = requests(*(whole[i : i + step] for i in range(0, len(whole), step)))
        assert framed(tmp_path, "postgres", cut) == expected


def test_postgres_replies_end_where_the_client_has_the_turn(tmp_path):
    def authentication(code: int, more: bytes = b"") -> bytes:
        return postgres(b"R", struct.pack("!I", code) + more)

    ready = postgres(b"Z", b"I")  # 6 bytes
    asked = (
        PG_STARTUP
        + postgres(b"p", b"SCRAM")
        + postgres(b"p", b"proof")
        + postgres(b"Q", b"copy t from stdin\0")
    )
    asked += postgres(b"d", b"1\n") + postgres(b"c", b"") + postgres(b"Q", b";\0")
    replies = [
        authentication(10, b"SCRAM-SHA-256\0\0"),
        authentication(11, b"salt"),
        # The last SCRAM message, its acceptance, and the server's parameters, up to ready.
        authentication(12, b"v") + authentication(0) + postgres(b"S", b"TimeZone\0UTC\0") + ready,
        postgres(b"G", bytes(3)),
        postgres(b"C", b"COPY 1\0") + ready,
        postgres(b"E", b"SERROR\0\0") + ready,
    ]
    packets = requests(asked)
    packets.insert(1, packet(SERVER, CLIENT, 4999, b"", SYN | ACK))
    seq = 5000
    for reply in replies:
        packets.append(packet(SERVER, CLIENT, seq, reply))
        seq += len(reply)
    path = tmp_path / "payload.pcap"
    path.write_bytes(pcap(packets))
    frames = load(path, "postgres", Ledger("lifetimes"))
    of_server = [frames.source[s] == SERVER for s in frames.stream]
    named = [frames.types[t] for t in frames.type]
    assert [t for t, of in zip(named, of_server) if of] == [
        "authenticate", "authenticate", "ready", "copy-in", "ready", "error",
    ]  # fmt: skip
    assert [int(n) for n, of in zip(frames.length, of_server) if of] == list(map(len, replies))
    # As many as there are requests, in the same order.
    assert [t for t, of in zip(named, of_server) if not of] == [
        "startup", "password", "password", "COPY", "copy", "query",
    ]  # fmt: skip


def test_postgres_goes_on_where_encryption_was_refused_and_ends_where_it_begins(tmp_path):
    ssl = postgres(b"", struct.pack("!I", 80877103))  # 8 bytes
    query = postgres(b"Q", b"begin\0")
    for answer, n in ((b"N", 3), (b"S", 1)):
        packets = requests(ssl, PG_STARTUP + query)
        packets[1:1] = [packet(SERVER, CLIENT, 4999, b"", SYN | ACK)]
        packets.insert(3, packet(SERVER, CLIENT, 5000, answer))
        assert [t for _, _, t in framed(tmp_path, "postgres", packets)] == ["encrypt", "startup", "BEGIN"][:n]


def test_http_bodies_count_by_length_and_by_chunks(tmp_path):
    get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"  # 27 bytes
    post = b"POST /x HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
    chunks = b"POST /y HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    found = framed(tmp_path, "http", requests(get + post[:10], post[10:] + chunks, get))
    at = [0, 27, 27 + len(post), 27 + len(post) + len(chunks)]
    assert found == [
        (at[0], 27, "GET"),
        (at[1], len(post), "POST"),
        (at[2], len(chunks), "POST"),
        (at[3], 27, "GET"),
    ]


@pytest.mark.parametrize(("magic", "order"), [(0xA1B2C3D4, ">"), (0xA1B23C4D, "<"), (0xA1B23C4D, ">")])
def test_byte_order_and_nanoseconds_of_the_file_do_not_matter(tmp_path, magic, order):
    assert framed(tmp_path, "memcached", requests(GET), magic=magic, order=order) == [(0, 9, "get")]


def test_packets_out_of_order_and_sent_twice_give_each_message_once(tmp_path):
    a, b, c, d = requests(GET, SET, GET)
    assert framed(tmp_path, "memcached", [a, c, b, b, d, c]) == [
        (0, 9, "get"),
        (9, 28, "set"),
        (37, 9, "get"),
    ]


def test_several_messages_in_one_read_share_it(tmp_path):
    # One packet with 9 + 28 + 9 = 46 bytes, read at once.
    recording = Recording().arrive(100, 1000, 46).hand_off(110, 1046).read(200, 1000, 46)
    messages, _ = rows(tmp_path, recording, requests(GET + SET + GET))
    assert [(m["byte_start"], m["nbytes"], m["request_type"]) for m in messages] == [
        (0, 9, "get"),
        (9, 28, "set"),
        (37, 9, "get"),
    ]
    assert {(m["app_ns"], m["n_in_read"], m["n_reads"]) for m in messages} == {(200, 3, 1)}


def test_one_message_over_two_reads_ends_with_the_last(tmp_path):
    recording = Recording().arrive(100, 1000, 28).hand_off(110, 1028).read(200, 1000, 16).read(300, 1016, 12)
    (m,), _ = rows(tmp_path, recording, requests(SET))
    assert (m["nbytes"], m["n_reads"], m["n_in_read"]) == (28, 2, 1)
    # The read of the value was entered at 295.
    assert (m["arrival_ns"], m["handoff_ns"], m["call_ns"], m["app_ns"], m["latency_ns"]) == (
        100,
        110,
        295,
        300,
        200,
    )


def test_message_that_ends_in_the_next_read_counts_for_that_read(tmp_path):
    # Reads of 20 and 17 bytes over get (9) and set (28): the set begins in the first, ends in the second.
    recording = Recording().arrive(100, 1000, 37).hand_off(110, 1037).read(200, 1000, 20).read(300, 1020, 17)
    messages, _ = rows(tmp_path, recording, requests(GET + SET))
    assert [(m["app_ns"], m["n_reads"], m["n_in_read"]) for m in messages] == [(200, 1, 1), (300, 2, 1)]


def test_a_message_over_two_reads_was_begun_in_the_first_unless_that_finished_another(tmp_path):
    recording = Recording().arrive(100, 1000, 28).hand_off(110, 1028).read(200, 1000, 16).read(300, 1016, 12)
    (m,), _ = rows(tmp_path, recording, requests(SET))
    # The read of the first part was entered at 195.
    assert m["begun_ns"] == 195
    # get and the begin of set in one read: until when the thread worked on get is unknown.
    recording = Recording().arrive(100, 1000, 37).hand_off(110, 1037).read(200, 1000, 20).read(300, 1020, 17)
    messages, _ = rows(tmp_path, recording, requests(GET + SET))
    assert [m["begun_ns"] for m in messages] == [None, None]


def test_a_message_whose_parts_two_threads_read_was_begun_by_another_thread(tmp_path):
    recording = Recording().arrive(100, 1000, 28).hand_off(110, 1028)
    recording.read(200, 1000, 16, tid=8).read(300, 1016, 12, tid=9)
    (m,), _ = rows(tmp_path, recording, requests(SET))
    assert (m["tid"], m["begun_ns"]) == (9, None)


def test_reads_without_packets_stay_messages_and_are_counted(tmp_path):
    recording = Recording().arrive(100, 1000, 9).hand_off(110, 1009).read(200, 1000, 9)
    recording.arrive(300, 1009, 50).hand_off(310, 1059).read(400, 1009, 50)
    messages, losses = rows(tmp_path, recording, requests(GET))
    assert [(m["nbytes"], m["request_type"]) for m in messages] == [(9, "get"), (50, None)]
    assert losses["read calls without framing"] == 1


def test_messages_that_nobody_read_are_counted(tmp_path):
    recording = Recording().arrive(100, 1000, 37).hand_off(110, 1037).read(200, 1000, 9)
    messages, losses = rows(tmp_path, recording, requests(GET + SET))
    assert [m["nbytes"] for m in messages] == [9]
    assert losses["framed messages that were not read in the capture"] == 1


def test_a_reply_over_two_writes_begins_with_the_first_call(tmp_path):
    reply = b"VALUE key 0 10\r\n0123456789\r\nEND\r\n"  # 16 + 12 + 5 = 33 bytes
    recording = Recording().send(200, 500, 16, call_ns=170).send(300, 516, 17, call_ns=270)
    recording.drive(190, 500, 16).drive(290, 516, 17)
    packets = [packet(SERVER, CLIENT, 499, b"", SYN), packet(SERVER, CLIENT, 500, reply)]
    (m,), _ = rows(tmp_path, recording, packets)
    assert (m["direction"], m["nbytes"], m["n_reads"]) == ("tx", 33, 2)
    assert (m["first_ns"], m["driver_ns"], m["latency_ns"]) == (170, 290, 120)
    assert (m["call_ns"], m["last_call_ns"], m["app_ns"]) == (170, 270, 300)


def test_the_driver_cannot_have_the_end_of_a_reply_before_its_last_call(tmp_path):
    """The X at 190 is of an older connection's bytes with the same numbers."""
    recording = (
        Recording().send(200, 500, 16, call_ns=170).send(300, 516, 17, call_ns=270).drive(190, 500, 33)
    )
    packets = [
        packet(SERVER, CLIENT, 499, b"", SYN),
        packet(SERVER, CLIENT, 500, b"VALUE key 0 10\r\n0123456789\r\nEND\r\n"),
    ]
    (m,), losses = rows(tmp_path, recording, packets)
    assert (m["driver_ns"], m["last_ns"]) == (None, 300)
    assert losses["negative interval: driver before the send call"] == 1


def test_sequence_numbers_that_wrap_do_not_move_the_messages(tmp_path):
    begin = 2**32 - 5
    recording = Recording().arrive(100, begin, 37).hand_off(110, begin + 37).read(200, begin, 37)
    messages, _ = rows(tmp_path, recording, requests(GET + SET, seq=begin))
    assert [(m["byte_start"], m["byte_end"]) for m in messages] == [(0, 9), (9, 37)]


@pytest.mark.parametrize(
    "content", [b"", b"no packets here", pcap(requests(GET))[:20], b"\x0a\x0d\x0d\x0a" + bytes(60)]
)
def test_what_is_no_pcap_file_is_refused(tmp_path, content):
    path = tmp_path / "payload.pcap"
    path.write_bytes(content)
    with pytest.raises(BadInput):
        load(path, "memcached", Ledger("lifetimes"))


def test_damaged_packets_never_crash_the_native_program(tmp_path):
    built.make(NATIVE, "build/asan/nsight-framing")
    program = NATIVE / "build" / "asan" / "nsight-framing"
    get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    chunks = b"POST /y HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    array = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n"
    binary = struct.pack("!BBHBBHIIQ", 0x80, 0, 3, 0, 0, 0, 3, 0, 0) + b"key"
    seeds = [
        ("memcached", pcap(requests(GET + SET[:9], SET[9:], GET))),
        ("memcached", pcap(requests(*[binary] * 40))),
        ("redis", pcap(requests(array, array[:7], array[7:]))),
        ("http", pcap(requests(get, chunks[:60], chunks[60:]))),
        (
            "http2",
            pcap(
                requests(
                    http2.PREFACE
                    + http2.frame(http2.HEADERS, 1, b"\x83\x86", http2.END_HEADERS)
                    + http2.get(3, "/"),
                    http2.frame(http2.DATA, 1, b"abc", http2.END_STREAM)
                    + http2.frame(http2.RST_STREAM, 1, bytes(4)),
                )
            ),
        ),
        (
            "postgres",
            pcap(
                requests(
                    PG_STARTUP,
                    postgres(b"Q", b"select 1\0"),
                    postgres(b"P", b"a\0begin\0") + postgres(b"S", b""),
                )
            ),
        ),
    ]
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    path = tmp_path / "damaged.pcap"
    codes = set()
    for number in range(150):
        rng = random.Random(f"framing {number}")
        protocol, seed = rng.choice(seeds)
        content = bytearray(seed)
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(content))
            content[at] = rng.choice([0, 0x7F, 0x80, 0xFF, content[at] ^ 1 << rng.randrange(8)])
        path.write_bytes(content[: rng.randrange(len(content))] if rng.random() < 0.2 else content)
        done = subprocess.run([program, protocol, path], capture_output=True, timeout=300, env=environment)
        assert done.returncode in (0, 3), (number, done.stderr.decode(errors="replace")[-2000:])
        codes.add(done.returncode)
    assert codes == {0, 3}
