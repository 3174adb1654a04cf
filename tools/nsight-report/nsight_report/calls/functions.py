# SPDX-License-Identifier: GPL-2.0-only
"""``calls`` and ``contexts`` at grade pt: every call, as nsight-decode found them in the packets.

Its table has times of the perf clock and names of functions. Here they become times in
monotonic and names as at grade trace: a system call has the name of the function that serves it,
what a softirq runs is one context.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .. import schema
from ..capture import native
from ..capture.perf_data import Convert
from ..errors import BadInput, Missing, OutputError
from ..losses import Ledger
from .innermost import nearest, stretches

I64 = npt.NDArray[np.int64]

DECODER = "nsight-decode"

#: Kinds of calls that are contexts by themselves.
CONTEXTS = ("thread", "idle", "syscall", "hardirq", "exception", "gap")

#: What runs the pending softirqs: before and since 6.10.
SOFTIRQ_RUNNERS = ("__do_softirq", "handle_softirqs")
#: Functions of softirqs (kernel/softirq.c: open_softirq) by the name that tracepoints give them.
SOFTIRQS = {
    "tasklet_hi_action": "HI",
    "run_timer_softirq": "TIMER",
    "net_tx_action": "NET_TX",
    "net_rx_action": "NET_RX",
    "blk_done_softirq": "BLOCK",
    "irq_poll_softirq": "IRQ_POLL",
    "tasklet_action": "TASKLET",
    "run_rebalance_domains": "SCHED",
    "sched_balance_softirq": "SCHED",
    "hrtimer_run_softirq": "HRTIMER",
    "rcu_core_si": "RCU",
    "rcu_core": "RCU",
}
#: Functions that serve a system call (SYSCALL_DEFINE in arch/x86).
SERVES = ("__x64_sys_", "__ia32_sys_", "__se_sys_", "__do_sys_")


@dataclass(frozen=True)
class Decoded:
    """What nsight-decode made: its table, in its order, and its own account."""

    table: pa.Table
    account: dict[str, Any]


#: Chooses what is decoded: begin and end of the trace in, stretches (rows of begin, end) out, in the perf clock.
Choose = Callable[[tuple[int, int]], I64]


def load(
    perf_data: Path, symfs: str | None, convert: Convert, choose: Choose | None = None
) -> tuple[dict[str, pa.Table], pa.Table]:
    """Tables ``calls``, ``contexts`` and ``trace`` of a perf.data with Intel PT, by name, and ``losses``.

    ``choose``: by default all is decoded. Without nsight-decode there are none, and the losses say so.
    """
    ledger = Ledger("calls")
    try:
        native.find(DECODER)
    except Missing:
        ledger.add(
            "functions not decoded",
            1,
            "warning",
            f"{DECODER} is not built: only who had the core is known, from context switches",
            "make decoder",
        )
        return {}, ledger.table()
    root = Path(symfs) if symfs else None
    span = traced(perf_data, root)
    decoded = decode(perf_data, root, choose(span) if choose else None)
    account(decoded, ledger)
    calls, contexts = build(decoded, convert, ledger)
    ends, _ = convert(np.array(span), "perf")
    return {"calls": calls, "contexts": contexts, "trace": _trace(ends, decoded.account)}, ledger.table()


def traced(perf_data: Path, symfs: Path | None) -> tuple[int, int]:
    """From when to when there is trace, in the perf clock."""
    with tempfile.TemporaryFile() as file:
        _run("info", perf_data, symfs, ["--json"], file)
        file.seek(0)
        told = json.load(file)
    known = [b for b in told["buffers"] if b["begin_ns"] is not None]
    if not known:
        raise BadInput(
            f"{perf_data}: its Intel PT data have no place where decoding could begin",
            "record again, longer or with a smaller psb_period",
        )
    return min(b["begin_ns"] for b in known), max(b["end_ns"] for b in known)


def decode(perf_data: Path, symfs: Path | None, windows: I64 | None = None) -> Decoded:
    """Run nsight-decode. ``symfs``: where the recorded machine's files are; by default here.

    ``windows``: stretches outside of which nothing is decoded (rows of begin, end in the perf clock).
    """
    try:
        with tempfile.TemporaryDirectory(prefix="nsight-") as directory:
            args = ["--out", directory]
            if windows is not None:
                wanted = Path(directory, "windows")
                np.savetxt(wanted, windows, fmt="%d-%d")
                args += ["--time", f"@{wanted}"]
            _run("calls", perf_data, symfs, args)
            table = pq.read_table(f"{directory}/calls")  # a file a core, in order
            account = json.loads(Path(directory, "calls.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise OutputError(
            f"{error.filename}: {error.strerror}", "free some disk space, or set TMPDIR"
        ) from None
    return Decoded(table, account)


def _run(
    command: str, perf_data: Path, symfs: Path | None, args: list[str], stdout: IO[bytes] | None = None
) -> None:
    data = perf_data / "data" if perf_data.is_dir() else perf_data
    args = [command, str(perf_data.resolve()), *args]
    args += ["--symfs", str(symfs.resolve())] if symfs else []
    native.run(DECODER, args, data.stat().st_size, stdout)


def build(decoded: Decoded, convert: Convert, ledger: Ledger) -> tuple[pa.Table, pa.Table]:
    """Tables ``calls`` and ``contexts`` of schema.py."""
    table = _in_monotonic(decoded.table, convert, ledger)
    parent = column(table, "parent_id")
    symbol, names = _strings(table, "symbol")
    kind, kinds = _strings(table, "kind")
    is_context = np.isin(kind, [kinds.index(k) for k in CONTEXTS if k in kinds])
    softirq = _softirqs(symbol, names, parent)
    is_context |= softirq >= 0
    inside = nearest(is_context, parent)
    if "syscall" in kinds:
        symbol, names = _name_syscalls(symbol, names, kind == kinds.index("syscall"), inside)
    table = table.set_column(table.column_names.index("symbol"), "symbol", _dictionary(symbol, names))
    return schema.conform("calls", table), _contexts(table, is_context, softirq, inside)


def column(table: pa.Table, name: str) -> I64:
    """An integer column without nulls."""
    return table[name].to_numpy().astype(np.int64, copy=False)


def _strings(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    encoded = table[name].combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int32), encoded.dictionary.to_pylist()


def _dictionary(codes: npt.NDArray[np.integer], values: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(values, pa.string()))


def _in_monotonic(table: pa.Table, convert: Convert, ledger: Ledger) -> pa.Table:
    """Both ends of each call converted, what lies outside of the clock mapping left out.

    Ends are converted and not durations: else a child could reach out of its parent.
    """
    start, good = convert(column(table, "start_ns"), "perf")
    end, end_good = convert(column(table, "start_ns") + column(table, "dur_ns"), "perf")
    good &= end_good
    ledger.add(
        "call outside the clock mapping",
        int((~good).sum()),
        "warning",
        "its time is in the perf clock, which no reading covers then; it was left out",
        "record clock readings for as long as perf records",
    )
    # Numbers of calls leave gaps between cores; from here on a call's number is its place.
    parent = column(table, "parent_id")
    parent = np.where(parent < 0, -1, np.searchsorted(column(table, "call_id"), parent))
    if not good.all():
        place = np.cumsum(good) - 1
        up = nearest(good, parent)
        above = np.where(parent < 0, -1, up[np.maximum(parent, 0)])[good]
        parent = np.where(above < 0, -1, place[np.maximum(above, 0)])
        table, start, end = table.filter(pa.array(good)), start[good], end[good]
    dur = np.maximum(end - start, 0)
    children = np.zeros(len(dur), np.int64)
    np.add.at(children, parent[parent >= 0], dur[parent >= 0])
    values = {
        "call_id": np.arange(len(dur)),
        "parent_id": parent,
        "start_ns": start,
        "dur_ns": dur,
        "self_ns": np.maximum(dur - children, 0),
    }
    for name, array in values.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(array))
    return table


def _softirqs(symbol: npt.NDArray[np.int32], names: list[str], parent: I64) -> npt.NDArray[np.int32]:
    """For each call the index in SOFTIRQS' values of the softirq that it is, or -1."""
    actions = {name: n for n, name in enumerate(SOFTIRQS)}
    by_symbol = np.array([actions.get(name, -1) for name in names], np.int32)
    runners = np.array([name in SOFTIRQ_RUNNERS for name in names])
    called = np.where(parent < 0, False, runners[symbol[np.maximum(parent, 0)]])
    return np.where(called, by_symbol[symbol], -1).astype(np.int32)


def _name_syscalls(
    symbol: npt.NDArray[np.int32], names: list[str], is_syscall: npt.NDArray[np.bool_], inside: I64
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """The symbol of a system call becomes the name in the first function below it that serves one."""
    found = {
        code: name.removeprefix(prefix)
        for code, name in enumerate(names)
        for prefix in SERVES
        if name.startswith(prefix)
    }
    rows = np.flatnonzero(np.isin(symbol, list(found)) & (inside >= 0))
    rows = rows[is_syscall[inside[rows]]]
    calls, first = np.unique(inside[rows], return_index=True)
    named = list(dict.fromkeys([*names, *found.values()]))
    place = {name: code for code, name in enumerate(named)}
    symbol = symbol.copy()
    symbol[calls] = [place[found[int(symbol[row])]] for row in rows[first]]
    return symbol, named


def _contexts(
    table: pa.Table, is_context: npt.NDArray[np.bool_], softirq: npt.NDArray[np.int32], inside: I64
) -> pa.Table:
    """Table ``contexts``: stretches with the same innermost context."""
    rows = np.flatnonzero(is_context)
    parent = column(table, "parent_id")
    outer = np.where(parent < 0, -1, inside[np.maximum(parent, 0)])
    start = column(table, "start_ns")
    end = start + column(table, "dur_ns")
    found = stretches(rows, column(table, "cpu")[rows], start[rows], end[rows], outer[rows])
    row = pa.array(found.row)
    is_softirq = softirq[found.row] >= 0
    softirqs = np.array([*SOFTIRQS.values(), ""], object)
    kind = table["kind"].take(row).cast(pa.string())
    symbol = table["symbol"].take(row).cast(pa.string())
    mask = pa.array(is_softirq)
    return schema.conform(
        "contexts",
        pa.table(
            {
                "cpu": pa.array(found.cpu, pa.int32()),
                "start_ns": found.start,
                "end_ns": found.end,
                "kind": pc.if_else(mask, "softirq", kind),
                "symbol": pc.if_else(mask, pa.array(softirqs[softirq[found.row]], pa.string()), symbol),
                "pid": table["pid"].take(row),
                "tid": table["tid"].take(row),
                "comm": _comms(table, found.row),
                "call_id": found.row,
            }
        ),
    )


def _comms(table: pa.Table, row: I64) -> pa.ChunkedArray:
    """The thread underneath: symbol of the outermost row."""
    parent = column(table, "parent_id")
    top = nearest(parent < 0, parent)[row]
    names = table["symbol"].take(pa.array(top)).cast(pa.string())
    idle = pc.equal(table["kind"].take(pa.array(top)).cast(pa.string()), "idle")
    return pc.if_else(idle, "swapper", names)


def _trace(ends: I64, account: dict[str, Any]) -> pa.Table:
    told = account.get("granularity_ns") or {}
    row = {
        "begin_ns": int(ends[0]),
        "end_ns": int(ends[1]),
        "median_step_ns": int(told.get("median") or 0),
        "p99_step_ns": int(told.get("p99") or 0),
        "edges_per_time": float(told.get("edges_per_time") or 0),
    }
    return schema.conform("trace", pa.Table.from_pylist([row]))


def account(decoded: Decoded, ledger: Ledger) -> None:
    """Enter what nsight-decode counted as lost or not decoded."""
    for loss in decoded.account.get("losses", []):
        if not isinstance(loss, dict) or loss.get("severity") not in ("error", "warning", "info"):
            raise BadInput("nsight-decode is of another version than this package", "run: make build")
        ledger.add(
            str(loss["cause"]), int(loss["count"]), loss["severity"], str(loss["detail"]), str(loss["remedy"])
        )


__all__ = ["CONTEXTS", "Decoded", "account", "build", "decode", "load"]
