# SPDX-License-Identifier: GPL-2.0-only
"""Run a message probe script around a command, and read what it printed."""

from __future__ import annotations

import json
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
#: Within which a probe script attaches or ends: an emulated machine that shares its host's cores takes minutes.
ATTACH_S = 240
ATTACHED = b"#nsight"
HEX = {"comm0", "comm1", "sk", "laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo"}


@dataclass
class Output:
    """Events as dicts of numbers, the script's own final counts, and the raw text."""

    events: list[dict[str, Any]]
    counts: dict[str, int]
    text: str

    def of(self, kind: str, **fields: int) -> list[dict[str, Any]]:
        """Events of one kind with these field values, in order of time."""
        found = [e for e in self.events if e["kind"] == kind and all(e[k] == v for k, v in fields.items())]
        return sorted(found, key=lambda e: e["ts"])

    def lines(self) -> Counter[str]:
        """Lines of each kind."""
        return Counter(e["kind"] for e in self.events)


def parse(text: str) -> Output:
    """Lines to events; a line with another number of fields fails."""
    events, counts = [], {}
    for line in text.splitlines():
        if match := re.fullmatch(r"@n\[(\w+)\]: (\d+)", line):
            counts[match[1]] = int(match[2])
        elif re.match(r"[A-Z]\t", line):
            values = line.split("\t")
            assert len(values) == len(FIELDS), line
            row: dict[str, Any] = {"kind": values[0]}
            row |= {f: int(v, 16 if f in HEX else 10) for f, v in zip(FIELDS[1:], values[1:])}
            events.append(row)
    return Output(events, counts, text)


def around(argv: list[str], command: list[str], out: Path) -> tuple[Output, dict[str, Any]]:
    """Start the script, run ``command`` once it is attached, stop it with SIGCONT as the header says.

    The line that BEGIN prints says that every probe is attached: bpftrace reads the buffer that the line is in only
    after it has attached the last one (BPFtrace::run(), poll_perf_events()).
    """
    with open(out, "wb") as stdout, open(out.with_suffix(".err"), "wb") as stderr:
        probe = subprocess.Popen(argv, stdout=stdout, stderr=stderr)
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
    """Every stamp of the known traffic, to the byte."""
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
    """Every produced event was delivered, and the script said so at its end."""
    lines = output.lines()
    assert lines
    assert {k: v for k, v in output.counts.items() if len(k) == 1} == dict(lines)
    assert output.text.rstrip().endswith("#end")
