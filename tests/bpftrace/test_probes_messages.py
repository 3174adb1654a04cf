# SPDX-License-Identifier: GPL-2.0-only
"""nsight-record.bt keeps timestamps until their message ends: one line per message, and no timestamp lost or repeated."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bpftrace.message_traffic import CASES, N_BULK, N_REQUESTS, N_TOGETHER, SLOW_S
from bpftrace.probe_run import BPFTRACE, FIELDS, MESSAGE_FIELDS, Output, around, check_counts, parse
from machinery.testbed import ports

from conftest import skip_or_fail

pytestmark = pytest.mark.live
TRAFFIC = Path(__file__).with_name("message_traffic.py")
#: Half of the wait of the traffic's slow request, and far more than any other request waits.
MIN_LATENCY_US = round(SLOW_S * 1e6 * 0.9)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    if os.geteuid() or not shutil.which("bpftrace"):
        skip_or_fail("bpf", "probes need root and bpftrace")
    if not any(
        Path(p, "events/sock/sk_data_ready").exists()
        for p in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
    ):
        skip_or_fail("bpf", "tracefs is not mounted, or the kernel is older than 6.3")
    with ports.reserved() as (number,):
        yield number


Cases = dict[str, tuple[Output, dict[str, Any]]]


def record(directory: Path, port: int, cases: list[str], *more: int) -> Cases:
    """Run the cases' traffic under one run of the script, and separate the cases; ``more``: parameters after the port."""
    argv = ["bpftrace", str(BPFTRACE / "nsight-record.bt"), str(port), *map(str, more)]
    output, truth = around(argv, [sys.executable, str(TRAFFIC), str(port), *cases], directory / "o")
    check_counts(output)
    found = {}
    for name, case in truth.items():
        ends = {port, case["client_port"]}
        lines = [line for line in output.text.splitlines() if ports_of(line) == ends]
        found[name] = parse("\n".join(lines)), case
        found[name][0].counts.update(output.counts)
    return found


def ports_of(line: str) -> set[int]:
    """Local and remote port of an event's or a message's line; for a datagram, the ports of its packet."""
    fields = line.split("\t")
    if len(fields) == len(MESSAGE_FIELDS):
        both = int(fields[14], 16)
        return {both >> 16, both & 0xFFFF or int(fields[27], 16) & 0xFFFF}
    return {int(fields[15]), int(fields[18])} if len(fields) == len(FIELDS) else set()


@pytest.fixture(scope="module")
def recorded(port: int, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return record(tmp_path_factory.mktemp("messages"), port, [name for name in CASES if name != "slow"])


def lengths(events: list[dict[str, Any]]) -> list[int]:
    """Payload lengths of the events with payload."""
    return [e["len"] for e in events if e["len"] > 0]


@pytest.mark.parametrize("case", ["requests", "datagrams"])
def test_a_message_takes_one_line(recorded, case):
    output, truth = recorded[case]
    assert len(output.of("R")) == len(output.of("S")) == truth["reads"]
    lines = sum(n for kind, n in output.own_lines().items() if kind != "O")
    assert lines <= 1.2 * (len(output.of("R")) + len(output.of("S")))
    for kind in "AHRSX":  # and holds every timestamp, once
        assert len([e for e in output.of(kind) if kind == "H" or e["len"] > 0]) >= truth["reads"], kind
    assert lengths(output.of("A")) == lengths(output.of("X")) == [10] * truth["reads"]


def test_packet_that_two_reads_take_is_printed_once(recorded):
    output, _ = recorded["in_parts"]
    assert lengths(output.of("R")) == [3, 7]
    assert lengths(output.of("A")) == [10]
    assert output.of("A", len=10)[0]["seq"] == output.of("R")[0]["seq"]


def packets(output, begin):
    """(bytes, first byte) of each packet with payload, in order. A stack that waited for its core may retransmit a packet."""
    arrived = [e for e in output.of("A") if e["len"] > 0]
    # A retransmitted packet has a different time; a packet that the script prints twice has the same time.
    assert len({(e["seq"], e["ts"]) for e in arrived}) == len(arrived)
    return list(dict.fromkeys((e["len"], (e["seq"] - begin) % 2**32) for e in arrived))


def test_packets_that_one_read_takes_are_all_printed(recorded):
    output, _ = recorded["together"]
    assert lengths(output.of("R")) == [10 * N_TOGETHER, 7]
    begin = output.of("R")[0]["seq"]
    assert packets(output, begin) == [*((10, 10 * n) for n in range(N_TOGETHER)), (7, 10 * N_TOGETHER)]
    handed = {(e["seq"] - begin) % 2**32 for e in output.of("H")}
    assert {10 * N_TOGETHER, 10 * N_TOGETHER + 7} <= handed
    line = next(x for x in output.text.splitlines() if x.startswith("R\t") and x.split("\t")[16] == "7")
    assert int(line.split("\t")[18]) & 0xFFFFFFFF in (0, 7)  # its own packet or none, not a leftover one


def test_packets_that_nobody_reads_are_printed_at_the_close(recorded):
    output, _ = recorded["unread"]
    assert lengths(output.of("R")) == []
    begin = next(e["seq"] for e in output.of("A") if e["len"] > 0)
    assert packets(output, begin) == [(10, 0), (20, 10)]


def test_read_that_also_takes_the_end_of_the_connection_has_its_own_bytes(recorded):
    """The end takes a sequence number, which is none of the message's. After it, the kernel may have taken the reader's port
    from its socket."""
    output, _ = recorded["ending"]
    sent = {(e["len"], e["seq"], e["lport"], e["rport"]) for e in output.of("S")}
    assert {(e["len"], e["seq"], e["rport"], e["lport"]) for e in output.of("R")} == sent
    assert sorted(n for n, *_ in sent) == [7, 8, 10]


def test_urgent_byte_has_its_own_place_among_the_bytes(recorded):
    output, _ = recorded["urgent"]
    begin = min(e["seq"] for e in output.of("S"))
    assert [((e["seq"] - begin) % 2**32, e["len"]) for e in output.of("R")] == [
        *((0, 10), (10, 1), (11, 7)),
        *((28, 1), (18, 10), (29, 7)),
    ]


def test_raw_socket_that_gets_copies_has_no_messages(recorded):
    assert not recorded["copies"][0].of("R")


def test_dropped_datagrams_do_not_shift_the_stamps_of_others(recorded):
    output, truth = recorded["dropped"]
    reads = output.of("R")
    assert [e["len"] for e in reads if e["len"] > 0] == [100] * (truth["reads"] - 1) + [7]
    assert truth["reads"] < 41
    assert sorted(lengths(output.of("A"))) == [7] + [100] * 40
    line = next(x for x in output.text.splitlines() if x.startswith("R\t") and x.split("\t")[16] == "7")
    assert int(line.split("\t")[18]) & 0xFFFFFFFF == 7  # the line has its own packet


def test_bytes_that_leave_after_the_send_call_are_printed(recorded, port):
    output, truth = recorded["bulk"]
    begin = min(output.of("S", lport=truth["client_port"]), key=lambda e: e["ts"])["seq"]
    spans = sorted(
        ((e["seq"] - begin) % 2**32, e["len"])
        for e in output.of("X", lport=truth["client_port"])
        if e["len"] > 0
    )
    # The kernel runs no tracepoint program inside another: a burst that interrupts one is not seen (the script's MISSES).
    # A stack that waited for its core may retransmit bytes.
    reached = seen = 0
    for start, length in spans:
        seen += max(0, start + length - max(start, reached))
        reached = max(reached, start + length)
    print(f"hand to driver not seen of {1 - seen / N_BULK:.1%} of the bytes")
    assert reached <= truth["bytes"] == N_BULK
    assert seen > N_BULK / 2
    assert sum(lengths(output.of("R", lport=port))) == N_BULK


def test_minimum_latency_leaves_faster_messages_out_and_counts_them(port, tmp_path):
    output, truth = record(tmp_path, port, ["slow"], 0, 0, 0, 0, 0, 0, MIN_LATENCY_US)["slow"]
    assert lengths(output.of("R")) == [11]
    read = output.of("R")[0]
    (arrival,) = (e for e in output.of("A") if e["len"] > 0)
    assert arrival["seq"] == read["seq"]
    assert read["ts"] - arrival["ts"] >= MIN_LATENCY_US * 1000
    # All other reads and sends (a send's latency is the duration of its call).
    assert output.counts["fast"] == 2 * truth["reads"] - 1 - len(output.of("S"))


def test_sampling_takes_one_of_so_many_and_counts_the_others(port, tmp_path):
    output, truth = record(tmp_path, port, ["requests"], 0, 0, 0, 0, 1, 0, 0, 4)["requests"]
    assert len(output.of("R")) + output.counts["unsampled"] == truth["reads"]
    # 800 draws of 1 in 4: 200 on average, with a standard deviation of 12; nine standard deviations either way.
    assert 2 * N_REQUESTS // 4 - 110 < len(output.of("R")) < 2 * N_REQUESTS // 4 + 110
