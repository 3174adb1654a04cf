# SPDX-License-Identifier: GPL-2.0-only
"""The expected result for a sequence: rows with times from the independent reader of packets."""

from __future__ import annotations

from dataclasses import dataclass

from decode.orders import reader
from decode.orders.encoder import NOMINAL, Options
from decode.orders.generator import BRANCH, OVERFLOW, Sequence, Step

#: Packets that only carry time, and those between PSB and PSBEND.
BESIDE = {"PAD", "CYC", "TSC", "MTC", "TMA", "CBR", "MNT", "PSB", "PSBEND"}


@dataclass(slots=True)
class Row:
    """An edge, or the begin of an overflow (kind OVERFLOW). ``sure``: no packet that would prove it can be missing."""

    kind: int
    start: int
    to: int
    time: int
    sure: bool
    special: int = 0


def _tsc_behind(found: list[reader.Packet], times: list[int | None], index: int) -> int | None:
    """What the first TSC packet tells before the next packet of a branch or event."""
    for packet, time in zip(found[index + 1 :], times[index + 1 :], strict=True):
        if packet.name == "TSC":
            return time
        if not (packet.header or packet.name in BESIDE):
            return None
    return None


def _known(steps: list[Step]) -> list[tuple[Step, bool]]:
    """Steps that packets tell, and whether no packet that tells of them may be lost."""
    known: list[tuple[Step, bool]] = []
    lost = False
    for step in steps:
        if step.kind == OVERFLOW:
            # Nothing shows whether steps that need no packet followed the last one.
            for at in range(len(known) - 1, -1, -1):
                if known[at][0].slot:
                    break
                known[at] = (known[at][0], False)
            lost = False
        lost = lost or step.slot == []
        if not lost:
            known.append((step, True))
    return known


def _patch(made: list[Row], untold: int | None, time: int) -> tuple[int, None]:
    """Rows without a recorded time have this one."""
    for row in made[untold:] if untold is not None else ():
        row.time = time
    return time, None


def rows(sequence: Sequence, options: Options) -> list[Row]:
    """In order of execution; times are TSC."""
    found = reader.packets(sequence.trace)
    times = reader.times(found, NOMINAL, options.tsc_ctc, options.mtc)
    index = {packet.at: n for n, packet in enumerate(found)}
    made: list[Row] = []
    now, since, lost_at = sequence.begin, None, 0
    untold: int | None = None
    for step, sure in _known(sequence.steps):
        told = times[index[step.slot[0]]] if step.slot else None
        if step.kind == OVERFLOW:
            at = index[step.slot[0]]
            # It began behind the last packet of time.
            before = [times[n] for n in range(at) if found[n].name in ("TSC", "MTC")][-1]
            if before > now:
                now, untold = _patch(made, untold, before)
            made.append(Row(OVERFLOW, 0, 0, now, sure))
            since, told, lost_at = now, told if step.to else None, at
        elif step.slot:
            at = index[step.slot[0]]
            # TIP.PGE may come without a CYC packet, if few cycles passed since a TSC packet behind the overflow.
            timed = found[at].name == reader.PGE and any(p.name == "TSC" for p in found[lost_at:at])
            if since is not None and max(told, now) <= since and not timed:
                behind = _tsc_behind(found, times, at)
                if behind is not None:
                    told = behind
                elif untold is None:
                    untold = len(made)
            since = None
        if told is not None and told > now:
            now, untold = _patch(made, untold, told)
        if step.kind not in (BRANCH, OVERFLOW):
            made.append(Row(step.kind, step.start, step.to, now, sure, step.special))
    return made
