# SPDX-License-Identifier: GPL-2.0-only
"""Chosen messages in Chrome's JSON trace format: calls, messages, timestamps with their flow, causes.

Times are microseconds since the first window, with three digits: the format has no finer unit. For everything else
the Perfetto trace is better (export/perfetto.py).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..names import printable
from ..tables.data_frames import each, to_pandas
from ..units import duration
from .call_events import names
from .output_file import opened
from .selection import Chosen, choose, marks, tracks

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

_CORES, _MESSAGES = 1, 2  # "processes"


def export(capture: CaptureTables, spec: str, path: Path) -> dict[str, int]:
    """Write the messages of ``spec`` to ``path``; returns counts of its contents."""
    chosen = choose(capture, spec)
    origin = min((w.begin_ns for w in chosen.windows), default=0)
    counts = {"messages": len(chosen.messages), "calls": 0, "anomalies": len(chosen.anomalies)}
    with opened(path) as raw, io.TextIOWrapper(raw, encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for event in _names(chosen):
            file.write(json.dumps(event) + ",\n")
        for lines in _calls(capture, chosen, origin):
            counts["calls"] += len(lines)
            file.writelines(lines)
        for event in _messages(chosen, origin):
            file.write(json.dumps(event) + ",\n")
        origin_event = {"name": "origin", "ph": "M", "pid": _CORES, "args": {"monotonic_ns": origin}}
        file.write(json.dumps(origin_event) + "\n]}\n")
    return counts


def _names(chosen: Chosen) -> Iterator[dict[str, Any]]:
    for pid, name in ((_CORES, "Cores"), (_MESSAGES, "Messages")):
        yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    for cpu in sorted({w.cpu for w in chosen.windows}):
        yield {"name": "thread_name", "ph": "M", "pid": _CORES, "tid": cpu, "args": {"name": f"core {cpu}"}}


def _calls(capture: CaptureTables, chosen: Chosen, origin: int) -> Iterator[list[str]]:
    for piece in capture.calls_within(chosen.windows):
        calls = to_pandas(piece)
        which, shown = names(calls)
        heads = [
            json.dumps({"name": printable(n, 400), "cat": c, "ph": "X", "pid": _CORES})[:-1] for c, n in shown
        ]
        columns = (calls[c].to_numpy(np.int64).tolist() for c in ("cpu", "start_ns", "dur_ns", "call_id"))
        yield [
            f'{heads[w]},"tid":{cpu},"ts":{_us(start - origin)},"dur":{_us(dur)},"args":{{"call_id":{call}}}}},\n'
            for w, cpu, start, dur, call in zip(which.tolist(), *columns)
        ]


def _us(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03}"


def _messages(chosen: Chosen, origin: int) -> Iterator[dict[str, Any]]:
    def at(ns: int) -> float:
        return (ns - origin) / 1000

    for track, m in zip(tracks(chosen.messages).tolist(), each(chosen.messages)):
        number = int(m.message_id)
        yield {
            "name": f"message {number}: {duration(int(m.latency_ns))}", "cat": "message", "ph": "X", "pid": _MESSAGES,
            "tid": track, "ts": at(int(m.first_ns)), "dur": int(m.latency_ns) / 1000,
            "args": {"message_id": number, "latency_ns": int(m.latency_ns), "comm": printable(m.comm)},
        }  # fmt: skip
        stamps = marks(m)
        for i, mark in enumerate(stamps):
            pid, tid = (_MESSAGES, track) if mark.cpu is None else (_CORES, mark.cpu)
            phase = "s" if i == 0 else "f" if i == len(stamps) - 1 else "t"
            common = {"cat": "timestamp", "pid": pid, "tid": tid, "ts": at(mark.ns)}
            yield {"name": f"message {number}: {mark.name}", "ph": "i", "s": "t", **common}
            yield {"name": "message", "ph": phase, "id": number, "bp": "e", **common}
    track_of = dict(zip(chosen.messages["message_id"].tolist(), tracks(chosen.messages).tolist()))
    drawn = {w.cpu for w in chosen.windows}
    for a in each(chosen.anomalies):
        # Time on the path is on no core, and the thread may have waited for a core that is not drawn.
        pid, tid = (_CORES, int(a.cpu)) if a.cpu in drawn else (_MESSAGES, track_of[a.message_id])
        yield {
            "name": f"{printable(a.category)} ({a.side}) +{duration(int(a.deviation_ns))}", "cat": "cause", "ph": "i",
            "s": "t", "pid": pid, "tid": tid, "ts": at(int(a.start_ns)),
            "args": {"message_id": int(a.message_id), "deviation_ns": int(a.deviation_ns), "subject": printable(a.subject)},
        }  # fmt: skip
