# SPDX-License-Identifier: GPL-2.0-only
"""Many sequences in one recording, and the result of each decoder."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterable
from collections.abc import Sequence as Sequenced
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decode import edges, parity
from decode import packets as pt
from decode.orders import generator, program, truth
from decode.orders.encoder import Options
from decode.orders.generator import OVERFLOW, PROGRAM, Sequence
from decode.parity import TAIL

#: From the end of a sequence to the next one, in ticks.
APART = 1 << 18
#: Sequences in one buffer.
IN_BUFFER = 250
LIBIPT = parity.TOP / "build/pt_emulation/pt-libipt"

#: Recordings of each kind are made in turn.
KINDS = {
    "cycles": Options(),
    "cycles, deferred TIPs": Options(deferred=True),
    "cycles, long TNT": Options(long_tnt=True, deferred=True),
    "cycles, threshold 16": Options(threshold=16),
    "cycles, MTC": Options(mtc=3),
    "cycles, MTC, returns not compressed": Options(mtc=3, compressed=False, deferred=True),
    "cycles, MTC of a long period": Options(mtc=9),
    "MTC alone": Options(cyc=False, mtc=3),
    "TSC alone": Options(cyc=False),
    "user code": Options(mtc=3, user_only=True),
    "branches alone": Options(mtc=3, events=False, overflows=False, filters=False, frequencies=False),
    "branches alone, returns not compressed": Options(
        compressed=False, deferred=True, events=False, overflows=False, filters=False
    ),
}
#: Kinds that every libipt can read.
PLAIN = ("branches alone, returns not compressed",)


@dataclass
class Batch:
    """``buffers``: the sequences of each, in order; ``recording``: the perf.data."""

    kind: str
    options: Options
    buffers: list[list[Sequence]]
    recording: pt.Recording

    def begins(self, buffer: int) -> np.ndarray:
        return np.array([sequence.begin for sequence in self.buffers[buffer]], np.uint64)


@dataclass(frozen=True)
class Difference:
    """The first row of a sequence in which a route differs from the truth."""

    kind: str
    route: str
    seed: int
    what: str

    def line(self) -> str:
        return f"{self.route}, {self.kind}, seed {self.seed}: {self.what}"


def make(kind: str, seeds: Iterable[int]) -> Batch:
    """The sequences of seeds in one recording."""
    options, buffers, tsc = KINDS[kind], [], 1 << 20
    for seed in seeds:
        if not buffers or len(buffers[-1]) == IN_BUFFER:
            buffers.append([])
            tsc = 1 << 20
        buffers[-1].append(generator.sequence(seed, options, tsc))
        tsc = buffers[-1][-1].end + APART
    traces = {(cpu, pt.PID): [b"".join(s.trace for s in b)] for cpu, b in enumerate(buffers)}
    config = pt.TSC | pt.BRANCH | (pt.CYC if options.cyc else 0)
    config |= 0 if options.compressed else pt.NO_RETURN_COMPRESSION
    config |= pt.MTC | options.mtc << 14 if options.mtc is not None else 0
    program = pt.elf(PROGRAM.code, PROGRAM.functions)
    return Batch(
        kind, options, buffers, pt.Recording(traces, config, tsc_ctc=options.tsc_ctc, program=program)
    )


def rows_of(stream: edges.Stream, batch: Batch) -> list[list[list[tuple[int, int, int, int]]]]:
    """(kind, from, to, time) by buffer and sequence; overflows and errors are rows with kinds below 0."""
    made = []
    for buffer, sequences in enumerate(batch.buffers):
        begins = batch.begins(buffer)
        e = stream.edges[stream.edges["cpu"] == buffer]
        v = stream.events[(stream.events["cpu"] == buffer) & np.isin(stream.events["code"], (1, 2))]
        at = np.searchsorted(begins, e["time"], "right") - 1
        rows = [[] for _ in sequences]
        columns = (at, e["kind"], e["from"], e["to"], e["time"])
        for n, *row in zip(*(c.tolist() for c in columns), strict=True):
            rows[max(n, 0)].append(tuple(row))
        at = np.searchsorted(begins, v["time"], "right") - 1
        for n, code, value, time in zip(
            *(c.tolist() for c in (at, v["code"], v["value"], v["time"])), strict=True
        ):
            rows[max(n, 0)].append((OVERFLOW if code == 2 else -2 - value, 0, 0, time))
        made.append(rows)
    return made


def differs(expected: list[truth.Row], found: list[tuple[int, int, int, int]], times: bool) -> str:
    """The first difference in a sequence; tail calls and events in the form of the route."""
    events = [row for row in found if row[0] < 0]
    found = [row for row in found if row[0] >= 0]
    at = 0
    for row in expected:
        if row.kind == OVERFLOW:
            continue
        got = found[at] if at < len(found) else None
        same = got is not None and got[:3] == (row.kind, row.start, row.to)
        if not same and not row.sure:
            continue
        if not same or (times and abs(got[3] - row.time) > 1):
            there = "nothing" if got is None else _text(got)
            return f"row {at}: {there}; expected {_text((row.kind, row.start, row.to, row.time))}"
        at += 1
    if at < len(found):
        return f"row {at}: {_text(found[at])}; expected nothing"
    lost = [(OVERFLOW, 0, 0, row.time) for row in expected if row.kind == OVERFLOW]
    near = len(lost) == len(events) and all(
        a[0] == b[0] and (not times or abs(a[3] - b[3]) <= 1) for a, b in zip(lost, events, strict=True)
    )
    return "" if near else f"events {events}; expected {lost}"


def _text(row: tuple[int, int, int, int]) -> str:
    kind, start, to, time = row
    return f"{edges.KINDS[kind] if kind > 0 else kind} {start:#x} to {to:#x} at {time}"


def by_native(batch: Batch, directory: Path, *options: str) -> edges.Stream:
    """Through nsight-decode."""
    return parity.by_native(directory / "perf.data", directory / "symfs", directory, *options)


def compare(
    batch: Batch,
    route: str,
    stream: edges.Stream,
    expected: Sequenced[list[list[truth.Row] | None]],
    times: bool,
) -> list[Difference]:
    """Where a stream differs from the expected one."""
    found = []
    for sequences, wanted, got in zip(batch.buffers, expected, rows_of(stream, batch), strict=True):
        for sequence, w, g in zip(sequences, wanted, got, strict=True):
            if w is not None and (what := differs(w, g, times)):
                found.append(Difference(batch.kind, route, sequence.seed, what))
    return found


def expected(batch: Batch) -> list[list[list[truth.Row]]]:
    """By buffer and sequence."""
    return [[truth.rows(s, batch.options) for s in buffer] for buffer in batch.buffers]


def for_perf(rows: list[list[list[truth.Row]]]) -> list[list[list[truth.Row] | None]]:
    """Rows as perf's routes have them: no tail calls, no transaction aborts among interrupts. None: do not compare.

    A direct branch that leaves an address filter is recorded by a TIP.PGD with its target (SDM, "Packet Generation under Different Enable
    Conditions", unconditional direct near jump). perf expects this only if the recording names the filters, which these recordings do not.
    """

    def kept(sequence: list[truth.Row]) -> list[truth.Row] | None:
        if any(row.special == generator.DIRECT for row in sequence):
            return None
        return [row for row in sequence if row.kind != TAIL and row.special != generator.ABORT]

    return [[kept(sequence) for sequence in buffer] for buffer in rows]


def taken(sequence: Sequence) -> list[tuple[int, int]]:
    """(from, to) of all branches that do not lead to the next instruction."""
    found = []
    for step in sequence.steps:
        edge = step.kind not in (generator.OVERFLOW, parity.BEGIN, parity.END)
        if edge and (step.kind == parity.INTERRUPT or step.to != PROGRAM.insns[step.start].next):
            found.append((step.start, step.to))
    return found


def by_libipt(batch: Batch, directory: Path) -> list[Difference]:
    """Only through libipt (``pt-libipt``): every branch, including those within functions."""
    code = directory / "code"
    page = PROGRAM.code.ljust(4096, b"\0")
    # Address spaces: of no CR3, and of those that PIP tells.
    spaces = sorted({0, 0x2000, (1 << 64) - 0x2000})
    code.write_bytes(b"".join(struct.pack("<QQQ", space, program.BASE, 0) + page for space in spaces))
    found = []
    for sequences in batch.buffers:
        aux = directory / "aux"
        aux.write_bytes(b"".join(s.trace for s in sequences))
        out = subprocess.run([LIBIPT, aux, code], check=True, capture_output=True).stdout
        words = np.frombuffer(out, "<u8").reshape(-1, 3)
        got = [(int(a), int(b)) for _, a, b in words[words[:, 0] == 1]]
        at = 0
        for sequence in sequences:
            wanted = taken(sequence)
            if got[at : at + len(wanted)] != wanted:
                found.append(Difference(batch.kind, "libipt", sequence.seed, "its branches differ"))
                break
            at += len(wanted)
    return found
