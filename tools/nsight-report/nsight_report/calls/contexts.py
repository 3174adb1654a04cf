# SPDX-License-Identifier: GPL-2.0-only
"""``calls`` and ``contexts`` in mode tracepoints.

The nesting is a stack per core with rules for missing enters and exits, driven event by
event: ``nsight-contexts`` does it in C (native/nsight-contexts.c states the
rules). This module turns its arrays into tables with names.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..capture import native
from ..errors import BadInput, OutputError
from ..losses import Ledger, of_group
from ..tables import schema

# Mirror struct nsight_call and struct nsight_interval of native/context_stack.h.
CALL = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("children", "<i8"),
        ("arg", "<i8"),
        ("parent", "<i8"),
        ("pid", "<i4"),
        ("tid", "<i4"),
        ("name", "<u4"),
        ("cpu", "<u2"),
        ("kind", "u1"),
        ("depth", "u1"),
        ("start_known", "u1"),
        ("end_known", "u1"),
        ("pad", "V2"),
        ("others", "<u4"),
    ]
)
INTERVAL = np.dtype([("start", "<i8"), ("end", "<i8"), ("call", "<i8"), ("comm", "<u4"), ("pad", "<u4")])

# In the order of enum context_kind and enum known.
KINDS = ("thread", "idle", "syscall", "softirq", "hardirq", "gap", "absent")
KNOWN = ("measured", "inferred", "missing")
THREAD, IDLE, SYSCALL, SOFTIRQ, HARDIRQ, GAP, ABSENT = range(len(KINDS))

#: Symbol of time that the host had without counting it as steal time (missed_ticks.py).
MISSED_TICKS = "missed timer ticks"

SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")


@dataclass(frozen=True)
class Nesting:
    """Output of nsight-contexts: arrays of CALL and INTERVAL, and its repairs."""

    calls: npt.NDArray[np.void]
    intervals: npt.NDArray[np.void]
    repairs: dict[str, int]


def nest(events: npt.NDArray[np.void], source: str = "perf.data") -> Nesting:
    """Nest the contexts of every core. ``events``: array of perf_data.EVENT in time order; ``source``: the file that contains them."""
    try:
        with tempfile.TemporaryDirectory(prefix="nsight-") as directory:
            events.tofile(f"{directory}/events.bin")
            native.run("nsight-contexts", [f"{directory}/events.bin", directory], events.nbytes)
            calls = np.fromfile(f"{directory}/calls.bin", dtype=CALL)
            intervals = np.fromfile(f"{directory}/contexts.bin", dtype=INTERVAL)
            repairs = json.loads(Path(directory, "contexts.json").read_text(encoding="utf-8"))["repairs"]
    except OSError as error:
        raise OutputError(
            f"{error.filename}: {error.strerror}", "free some disk space, or set TMPDIR"
        ) from None
    if not len(calls):
        raise BadInput(
            f"{source} does not show which threads ran on any core",
            "record at least -e sched:sched_switch on all cores (-a)"
            if source == "perf.data"
            else "record again",
        )
    return Nesting(*_in_order(calls, intervals), repairs)


def _in_order(
    calls: npt.NDArray[np.void], intervals: npt.NDArray[np.void]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Order calls by cpu, start and depth: calls without length may have come in another order."""
    order = np.lexsort((calls["depth"], calls["start"], calls["cpu"]))
    if (order == np.arange(len(order))).all():
        return calls, intervals
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    calls, intervals = calls[order], intervals.copy()
    has_parent = calls["parent"] >= 0
    calls["parent"][has_parent] = place[calls["parent"][has_parent]]
    intervals["call"] = place[intervals["call"]]
    return calls, intervals


def tables(
    nesting: Nesting, strings: list[str], syscall_names: Mapping[str, str]
) -> tuple[pa.Table, pa.Table]:
    """Tables ``calls`` and ``contexts`` of schema.py."""
    calls, intervals = nesting.calls, nesting.intervals
    symbols, symbol_names = _symbols(calls, strings, syscall_names)
    kinds = calls["kind"].astype(np.int32)
    duration = calls["end"] - calls["start"]
    of = intervals["call"]
    call_table = {
        "call_id": np.arange(len(calls)),
        "parent_id": calls["parent"],
        "depth": calls["depth"].astype(np.int32),
        "kind": _dictionary(kinds, KINDS),
        "symbol": _dictionary(symbols, symbol_names),
        "dso": _dictionary(np.zeros(len(calls), np.int32), [""]),
        "cpu": calls["cpu"].astype(np.int32),
        "pid": calls["pid"],
        "tid": calls["tid"],
        "start_ns": calls["start"],
        "dur_ns": duration,
        "self_ns": duration - calls["children"],
        "start_known": _dictionary(calls["start_known"].astype(np.int32), KNOWN),
        "end_known": _dictionary(calls["end_known"].astype(np.int32), KNOWN),
        "arg": calls["arg"],
        **{name: _dictionary(np.zeros(len(calls), np.int32), [""]) for name in ("before", "gap_cause")},
        "start_addr": np.zeros(len(calls), np.uint64),
    }
    context_table = {
        "cpu": calls["cpu"][of].astype(np.int32),
        "start_ns": intervals["start"],
        "end_ns": intervals["end"],
        "kind": _dictionary(kinds[of], KINDS),
        "symbol": _dictionary(symbols[of], symbol_names),
        "pid": calls["pid"][of],
        "tid": calls["tid"][of],
        "comm": comms(intervals["comm"], calls["tid"][of], strings),
        "call_id": of,
        "others": receivers(calls["others"][of], strings),
    }
    return schema.conform("calls", pa.table(call_table)), schema.conform("contexts", pa.table(context_table))


def _dictionary(codes: npt.NDArray[np.integer], values: list[str] | tuple[str, ...]) -> pa.DictionaryArray:
    # A thread may have the name of a system call, and two interrupts equal names: each name is stored once.
    unique = list(dict.fromkeys(values))
    if len(unique) < len(values):
        place = {name: code for code, name in enumerate(unique)}
        codes, values = np.array([place[name] for name in values])[codes], unique
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(values, pa.string()))


def comms(
    numbers: npt.NDArray[np.integer], tids: npt.NDArray[np.integer], strings: list[str]
) -> pa.DictionaryArray:
    """Names of threads: string ``number``; the idle thread is ``swapper``; an unknown one is ``tid N``; no thread has an empty name."""
    # One number per name: strings keep theirs, nameless threads get one below 0; 0 is no string.
    nameless = -2 - tids.astype(np.int64)
    keys = np.where(tids == 0, 0, np.where(numbers > 0, numbers.astype(np.int64), nameless))
    codes, uniques = pd.factorize(keys)

    def name(key: int) -> str:
        if key > 0:
            return strings[key] if key < len(strings) else f"string {key}"
        if key == 0:
            return "swapper"
        return "" if key == -1 else f"tid {-2 - key}"

    return _dictionary(codes, [name(int(key)) for key in uniques])


def receivers(numbers: npt.NDArray[np.integer], strings: list[str]) -> pa.DictionaryArray:
    """Column ``others`` of contexts: the string as in names of interference, '' if there is none."""
    codes, uniques = pd.factorize(numbers)
    names = [f"{strings[n]} receive" if 0 < n < len(strings) else "" for n in uniques.tolist()]
    return _dictionary(codes, names)


def _symbols(
    calls: npt.NDArray[np.void], strings: list[str], syscall_names: Mapping[str, str]
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A code for each call's symbol, and the symbols."""
    names = {str(number): str(name) for number, name in syscall_names.items()}
    kinds, numbers = calls["kind"].astype(np.int64), calls["name"].astype(np.int64)
    # Without a name, tid distinguishes threads, and the number distinguishes interrupts.
    nameless = ((kinds == THREAD) | (kinds == HARDIRQ)) & (numbers == 0)
    fallback = np.where(kinds == THREAD, calls["tid"], calls["arg"]).astype(np.int64) & 0xFFFFFFFF
    keys = (kinds << 33) | (nameless.astype(np.int64) << 32) | np.where(nameless, fallback, numbers)
    codes, uniques = pd.factorize(keys)

    def symbol(key: int) -> str:
        kind, named, number = key >> 33, not key >> 32 & 1, key & 0xFFFFFFFF
        if kind == THREAD:
            return strings[number] if named else f"tid {number}"
        if kind == HARDIRQ:
            return strings[number] if named else f"irq {number}"
        if kind == SOFTIRQ:
            return SOFTIRQS[number] if number < len(SOFTIRQS) else f"softirq {number}"
        if kind == SYSCALL:
            signed = number - (1 << 32) if number >> 31 else number
            return names.get(str(signed), f"syscall {signed}")
        if kind == ABSENT:
            return MISSED_TICKS if number else "steal"
        return KINDS[kind]

    return codes.astype(np.int32), [symbol(int(key)) for key in uniques]


def account(repairs: Mapping[str, int], ledger: Ledger, source: str = "perf.data") -> None:
    """Enter the repairs that nsight-contexts made to the events in ``source``."""
    of_perf = source == "perf.data"
    lost = "perf lost events" if of_perf else "records were lost"
    remedy = "give perf a larger buffer (-m)" if of_perf else "record again, with larger buffers"
    for key in of_group("activity_"):
        n = repairs[key]
        ledger.add(f"activity_{key}", n, lost=lost, remedy=remedy, gap_ns=repairs["gap_ns"])
