# SPDX-License-Identifier: GPL-2.0-only
"""Runs perf on captures, and reads its output independently of the code under test."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TOP = Path(__file__).resolve().parents[2]
SCRIPTS = TOP / "perf-scripts"
SCRIPT = SCRIPTS / "nsight.py"
FILTER = SCRIPTS / "dlfilters/nsight-edges.so"
EDGES_PROGRAM = SCRIPTS / "nsight-edges"

# perf's names of branches (perf-script(1)), and the kinds of Documentation/formats.md.
KINDS = {"call": 1, "return": 2, "syscall": 3, "sysret": 4, "hw int": 5, "iret": 6, "tr strt": 7, "int": 10}
ERROR, OVERFLOW, TRUNCATED, LOST, CBR, SWITCH_IN, SWITCH_OUT, PARTIAL = 1, 2, 3, 4, 7, 8, 9, 10
Edge = tuple[int, int, int, int, int, int, tuple[str, str], tuple[str, str], int]
_LINE = re.compile(
    r" *(-?\d+)/(-?\d+) +\[(\d+)\] +(\d+)\.(\d{9}): +([a-z ]+?) +([0-9a-f]+) (.*) \((.*)\) => +([0-9a-f]+) (.*) \((.*)\)$"
)


def perf(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run perf with these arguments."""
    return subprocess.run(
        ["perf", *map(str, arguments)], capture_output=True, text=True, timeout=300, **options
    )


def inputs(capture: Path) -> list[str]:
    """perf's options that name a capture."""
    return ["-i", str(capture / "capture.nsight/perf.data"), "--symfs", str(capture / "symfs")]


def by_script(capture: Path, *options: object, itrace: str = "cr") -> subprocess.CompletedProcess[str]:
    """nsight.py on a capture, as users call it."""
    return perf("script", *inputs(capture), f"--itrace={itrace}", "-s", SCRIPT, "--", *options)


def by_filter(capture: Path, output: Path, itrace: str = "cr") -> subprocess.CompletedProcess[str]:
    """The dlfilter on a capture, without nsight-edges around it."""
    argv = [*inputs(capture), f"--itrace={itrace}", "--dlfilter", FILTER, "--dlarg", output]
    return perf("script", *argv)


def by_program(
    capture: Path, output: Path, *options: object, perf_options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """nsight-edges on a capture."""
    data, symfs = inputs(capture)[:2], inputs(capture)[2:]
    argv = [sys.executable, EDGES_PROGRAM, *data, "-o", output, *options, "--", *symfs, *perf_options]
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=300)


def text_edges(capture: Path) -> list[Edge]:
    """Edges as perf itself prints them."""
    fields = "pid,tid,cpu,time,flags,ip,sym,addr,dso"
    done = perf("script", *inputs(capture), "--itrace=cr", "--ns", "-F", fields)

    def name(symbol: str, dso: str) -> tuple[str, str]:
        return tuple("" if word == "[unknown]" else word for word in (symbol, dso))

    edges = []
    for line in done.stdout.splitlines():
        found = _LINE.match(line)
        assert found, line
        pid, tid, cpu, s, ns, flags, ip, sym, dso, to, to_sym, to_dso = found.groups()
        kind = 8 if flags.startswith("tr end") else KINDS[flags]
        where = (int(pid), int(tid), int(cpu))
        time = int(s) * 10**9 + int(ns)
        edges.append((time, int(ip, 16), int(to, 16), *where, name(sym, dso), name(to_sym, to_dso), kind))
    return edges


@dataclass
class Stream:
    """Contents of an edge stream."""

    edges: list[Edge] = field(default_factory=list)
    events: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)
    threads: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def codes(self, code: int) -> list[tuple[int, int, int, int, int, int]]:
        """Events with this code, in order of time."""
        return sorted(event for event in self.events if event[4] == code)


def read_stream(path: Path) -> Stream:
    """Read an edge stream as Documentation/formats.md describes it."""
    data = path.read_bytes()
    assert data[:8] == b"NSEDGE01"
    at, stream = 8, Stream()
    while at < len(data):
        kind, n_rows = np.frombuffer(data, "<u4", 2, at)
        size = int(np.frombuffer(data, "<u8", 1, at + 8)[0])
        assert size % 8 == 0
        at += 16
        payload, at = data[at : at + size], at + size
        assert len(payload) == size
        stream.blocks.append(int(kind))
        if kind == 2:
            words = payload.split(b"\0")[: 2 * n_rows]
            stream.names += [(words[i].decode(), words[i + 1].decode()) for i in range(0, len(words), 2)]
            continue
        if kind == 4:
            layout = (("<u8", 0), ("<i4", 8), ("<i4", 12))
            columns = [np.frombuffer(payload, t, n_rows, int(n_rows) * o).tolist() for t, o in layout]
            words = [payload[16 * (int(n_rows) + i) :][:16].rstrip(b"\0") for i in range(n_rows)]
            stream.threads += zip(*columns, words)
            continue
        types = (
            ["u8", "u8", "u8", "i4", "i4", "i4", "u4", "u4", "u1"]
            if kind == 1
            else ["u8", "i4", "i4", "i4", "u4", "u8"]
        )
        columns, used = [], 0
        for t in types:
            columns.append(np.frombuffer(payload, f"<{t}", n_rows, used).tolist())
            used += int(n_rows) * int(t[1])
        assert size - used < 8
        if kind == 1:
            names = stream.names
            stream.edges += [(*r[:6], names[r[6]], names[r[7]], r[8]) for r in zip(*columns)]
        else:
            assert kind == 3
            stream.events += zip(*columns)
    return stream
