# SPDX-License-Identifier: GPL-2.0-only
"""Run a message probe script around a command, and parse its output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BPFTRACE = ROOT / "bpftrace"
TRAFFIC = Path(__file__).with_name("echo_traffic.py")
FIELDS = [
    "kind",
    "ts",
    "cpu",
    "pid",
    "tid",
    "comm0",
    "comm1",
    "fd",
    "call_ts",
    "sk",
    "netns",
    "proto",
    "family",
    "laddr_hi",
    "laddr_lo",
    "lport",
    "raddr_hi",
    "raddr_lo",
    "rport",
    "seq",
    "len",
    "hwstamp",
    "swstamp",
    "aux",
]
#: Fields of a line with a whole message.
MESSAGE_FIELDS = [
    "kind", "ts", "cores", "thread", "comm0", "comm1", "fd", "call_ts", "sk", "socket", "laddr_hi", "laddr_lo",
    "raddr_hi", "raddr_lo", "ports", "seq", "len", "p_ts", "p_range", "p_hw", "p_sw", "p_aux", "h_ts", "p_laddr_hi",
    "p_laddr_lo", "p_raddr_hi", "p_raddr_lo", "p_peer",
]  # fmt: skip
#: Time limit for a probe script to attach or end: an emulated machine that shares its host's cores takes minutes.
ATTACH_S = 600
ATTACHED = b"#nsight"
#: Large enough for all lines of any test's traffic, so that nothing is lost while bpftrace waits for a core.
RB_PAGES = 1024
HEX = {"comm0", "comm1", "sk", "laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo"}
MESSAGE_HEX = HEX | {
    "cores", "thread", "socket", "ports", "p_laddr_hi", "p_laddr_lo", "p_raddr_hi", "p_raddr_lo", "p_peer",
}  # fmt: skip


@dataclass
class Output:
    """Events as dicts of numbers, the script's final counts, the raw text, and how many lines had a message."""

    events: list[dict[str, Any]]
    counts: dict[str, int]
    text: str
    n_messages: int = 0

    def of(self, kind: str, **fields: int) -> list[dict[str, Any]]:
        """Events of one kind with these field values, in order of time."""
        found = [e for e in self.events if e["kind"] == kind and all(e[k] == v for k, v in fields.items())]
        return sorted(found, key=lambda e: e["ts"])

    def lines(self) -> Counter[str]:
        """Number of events of each kind, including those in lines of messages."""
        return Counter(e["kind"] for e in self.events)

    def own_lines(self) -> Counter[str]:
        """Number of lines that start with each kind."""
        return Counter(re.findall(r"^([A-Z])\t", self.text, re.MULTILINE))


def parse_message(values: list[str]) -> list[dict[str, Any]]:
    """The events in the line of a message: packet and hand-off if they are known, and the read or the send."""
    m = {f: int(v, 16 if f in MESSAGE_HEX else 10) for f, v in zip(MESSAGE_FIELDS[1:], values[1:])}
    socket, thread = m["socket"], m["thread"]
    row: dict[str, Any] = {"kind": values[0], "hwstamp": 0, "swstamp": 0, "aux": 0}
    row |= {f: m[f] for f in FIELDS if f in m}
    row |= {
        "cpu": m["cores"] & 0xFFFF,
        "pid": thread >> 32,
        "tid": thread & 0xFFFFFFFF,
        "netns": socket >> 16,
    }
    row |= {"proto": socket >> 8 & 255, "family": socket & 255}
    row |= {"lport": m["ports"] >> 16, "rport": m["ports"] & 0xFFFF}
    events, reads = [], values[0] == "R"
    end, length = m["p_range"] >> 32 & 0xFFFFFFFF, m["p_range"] & 0xFFFFFFFF
    bare = row | {"pid": 0, "tid": 0, "comm0": 0, "comm1": 0, "fd": -1, "call_ts": 0, "len": 0}
    if m["p_ts"]:
        packet = bare | {"kind": "A" if reads else "X", "ts": m["p_ts"], "cpu": m["cores"] >> 16 & 0xFFFF}
        packet |= {"len": length, "seq": (end - length) % 2**32 if row["proto"] == 6 else 0}
        packet |= {"hwstamp": m["p_hw"], "swstamp": m["p_sw"], "aux": m["p_aux"]}
        if row["proto"] == 17:
            packet |= {f: m["p_" + f] for f in ("laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo")}
            packet |= {"family": m["p_peer"] >> 16, "rport": m["p_peer"] & 0xFFFF}
        events.append(packet)
    if m["h_ts"] and reads:
        ends = end if m["p_ts"] else row["seq"] + row["len"]
        seq = ends % 2**32 if row["proto"] == 6 else 0
        events.append(bare | {"kind": "H", "ts": m["h_ts"], "cpu": m["cores"] >> 32, "seq": seq})
    return [*events, row]


def parse(text: str) -> Output:
    """Convert lines to events; a line with another number of fields fails."""
    events, counts, n_messages = [], {}, 0
    for line in text.splitlines():
        if match := re.fullmatch(r"@n\[(\w+)\]: (\d+)", line):
            counts[match[1]] = int(match[2])
        elif re.match(r"[A-Z]\t", line):
            values = line.split("\t")
            if len(values) == len(MESSAGE_FIELDS):
                events += parse_message(values)
                n_messages += 1
                continue
            assert len(values) == len(FIELDS), line
            row: dict[str, Any] = {"kind": values[0]}
            row |= {f: int(v, 16 if f in HEX else 10) for f, v in zip(FIELDS[1:], values[1:])}
            events.append(row)
    return Output(events, counts, text, n_messages)


def around(argv: list[str], command: list[str], out: Path) -> tuple[Output, dict[str, Any]]:
    """Start the script, run ``command`` once it is attached, stop it with SIGCONT as the header says.

    The line that BEGIN prints says that every probe is attached: bpftrace reads the buffer that the line is in only
    after it has attached the last one (BPFtrace::run(), poll_perf_events()).
    """
    with open(out, "wb") as stdout, open(out.with_suffix(".err"), "wb") as stderr:
        env = {**os.environ, "BPFTRACE_PERF_RB_PAGES": str(RB_PAGES)}
        probe = subprocess.Popen(argv, stdout=stdout, stderr=stderr, env=env)
        try:
            deadline = time.monotonic() + ATTACH_S
            while ATTACHED not in out.read_bytes():
                assert probe.poll() is None, out.with_suffix(".err").read_text()
                assert time.monotonic() < deadline, f"the probes were not attached within {ATTACH_S} s"
                time.sleep(0.05)
            done = subprocess.run(command, capture_output=True, text=True, timeout=ATTACH_S, check=True)
            probe.send_signal(signal.SIGCONT)
            assert probe.wait(ATTACH_S) == 0
        finally:
            if probe.poll() is None:
                probe.kill()
                probe.wait()
    return parse(out.read_text()), json.loads(done.stdout)


def record(
    script: str, out: Path, port: int, *filters: int, bpftrace: list[str] | None = None
) -> tuple[Output, Any]:
    """The known traffic under ``script`` with these positional filters."""
    argv = [*(bpftrace or ["bpftrace"]), str(BPFTRACE / script), *map(str, filters)]
    return around(argv, [sys.executable, str(TRAFFIC), str(port)], out)


def check_traffic(output: Output, truth: dict[str, Any]) -> None:
    """Every timestamp of the known traffic, to the byte."""
    assert len(truth["connections"]) == 4
    for c in truth["connections"]:
        own = {"family": c["family"], "proto": c["proto"]}
        server = {**own, "lport": c["port"]}
        reads = [e for e in output.of("R", **server, fd=c["server_fd"]) if e["len"] > 0]
        assert [e["len"] for e in reads] == [10, 20, 30], c
        assert {e["tid"] for e in reads} == {c["server_tid"]}
        assert {e["pid"] for e in reads} == {truth["pid"]}
        assert all(0 < e["call_ts"] <= e["ts"] for e in reads)
        sends = output.of("S", **own, rport=c["port"], fd=c["client_fd"])
        assert [e["len"] for e in sends] == [10, 20, 30], c
        arrivals = [e for e in output.of("A", **server, rport=c["client_port"]) if e["len"] > 0]
        driven = [e for e in output.of("X", **own, rport=c["port"], lport=c["client_port"]) if e["len"] > 0]
        assert [e["len"] for e in arrivals] == [10, 20, 30], c
        assert [e["len"] for e in driven] == [10, 20, 30], c
        assert all(x["ts"] <= a["ts"] for x, a in zip(driven, arrivals))
        handed = [e for e in output.of("H", **server) if c["proto"] == 17 or e["rport"] == c["client_port"]]
        assert len(handed) >= 3
        if c["proto"] == 6:
            begin = reads[0]["seq"]
            # Ranges follow each other: 10, then 20, then 30 bytes.
            for events in (reads, sends, arrivals, driven):
                assert [(e["seq"] - begin) % 2**32 for e in events] == [0, 10, 30]
            assert {(begin + n) % 2**32 for n in (10, 30, 60)} <= {e["seq"] for e in handed}
            states = [e["aux"] for e in output.of("O", **own, lport=c["port"], rport=c["client_port"])]
            assert 1 in states and states[-1] == 7  # ESTABLISHED first, CLOSE last


def check_counts(output: Output) -> None:
    """Every produced event was delivered, and the script reported this at its end."""
    lines = output.own_lines()
    assert lines
    assert {k: v for k, v in output.counts.items() if len(k) == 1} == dict(lines)
    assert output.text.rstrip().endswith("#end")
