# SPDX-License-Identifier: GPL-2.0-only
"""``calls`` and ``contexts`` in mode intel-pt: every call, as nsight-decode found them in the trace packets.

Its table has times of the perf clock and names of functions. This module converts them to
monotonic times and to the names of mode tracepoints: a system call has the name of the function that serves it,
and what a softirq runs is one context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..capture import native
from ..capture.perf_data import Convert
from ..errors import Missing
from ..losses import Ledger
from ..tables import schema
from ..tables.store import Writer, Written, writing
from . import decoder, frequencies
from .innermost import innermost, nearest

I64 = npt.NDArray[np.int64]

#: Kinds of calls that are contexts themselves.
CONTEXTS = ("thread", "idle", "syscall", "hardirq", "exception", "gap")

#: Functions that run the pending softirqs: before 6.10 and since then.
SOFTIRQ_RUNNERS = ("__do_softirq", "handle_softirqs")
#: Functions of softirqs (kernel/softirq.c: open_softirq), by their names in tracepoints.
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


#: Chooses what is decoded: begin and end of the trace as input, intervals (rows of begin, end, cpu) as output, in the perf clock.
Choose = Callable[[tuple[int, int]], I64]


#: Number of rows that are processed at a time.
BATCH = 1 << 18


def load(
    perf_data: Path, symfs: str | None, convert: Convert, scratch: Path, choose: Choose | None = None
) -> tuple[dict[str, pa.Table | Written], pa.Table]:
    """Tables ``calls``, ``contexts``, ``frequencies`` and ``trace`` of a perf.data with Intel PT, by name, and ``losses``.

    ``scratch``: an empty directory for what does not fit in memory.
    ``choose``: by default everything is decoded. Without nsight-decode the tables are empty, and the losses say so.
    """
    ledger = Ledger("calls")
    try:
        native.find(decoder.DECODER)
    except Missing:
        ledger.add("functions_not_decoded", 1, decoder=decoder.DECODER)
        return {}, ledger.table()
    root = Path(symfs) if symfs else None
    span = decoder.traced(perf_data, root)
    decoded = decoder.decode(perf_data, root, scratch, choose(span) if choose else None)
    decoder.account(decoded, ledger)
    outside, told = 0, list[pa.Table]()
    written = {name: Written(scratch / f"{name}.parquet") for name in ("calls", "contexts")}
    with (
        writing(scratch),
        Writer(written["calls"].path, schema.TABLES["calls"].arrow()) as calls,
        Writer(written["contexts"].path, schema.TABLES["contexts"].arrow()) as contexts,
    ):
        for batch in batches(decoded.files):
            of_batch, within, left_out = build(batch, convert, calls.n_rows)
            calls.write(of_batch)
            contexts.write(within)
            told.append(frequencies.packets(of_batch))
            outside += left_out
    ledger.add("calls_outside_clock_map", outside)
    ends, _ = convert(np.array(span), "perf")
    trace = _trace(ends, decoded.account)
    at = frequencies.of_packets(told, ledger)
    return {**written, "trace": trace, "frequencies": at}, ledger.table()


def batches(files: list[Path], rows: int = BATCH) -> Iterator[pa.Table]:
    """The rows of nsight-decode's files, each core in time order, some at a time.

    Pieces are cut where a thread got its core: no call of one piece is inside a call of another.
    """
    for file in files:
        with pq.ParquetFile(file) as parquet:
            rest = parquet.schema_arrow.empty_table()
            # A bound, not a guarantee: a thread that was never switched out is a single piece.
            for more in parquet.iter_batches(rows):
                rest = pa.concat_tables([rest, pa.Table.from_batches([more])])
                outermost = np.flatnonzero(column(rest, "depth") == 0)
                cut = int(outermost[-1]) if len(outermost) else 0
                if cut:
                    yield rest.slice(0, cut).unify_dictionaries()
                    rest = rest.slice(cut)
            if rest.num_rows:
                yield rest.unify_dictionaries()


def build(table: pa.Table, convert: Convert, first: int = 0) -> tuple[pa.Table, pa.Table, int]:
    """Tables ``calls`` and ``contexts`` of schema.py for a batch, and how many calls the clock mapping does not cover.

    ``first``: the number of the batch's first call; numbers of calls are positions in the whole table.
    """
    table, outside = _in_monotonic(table, convert)
    parent = column(table, "parent_id")
    symbol, names = _strings(table, "symbol")
    kind, kinds = _strings(table, "kind")
    is_context = np.isin(kind, [kinds.index(k) for k in CONTEXTS if k in kinds])
    softirq = _softirqs(symbol, names, parent)
    is_context |= softirq >= 0
    inside = nearest(is_context, parent)
    if "syscall" in kinds:
        symbol, names = _name_syscalls(symbol, names, kind == kinds.index("syscall"), inside)
    table = _with(table, symbol=_dictionary(symbol, names))
    contexts = _contexts(table, is_context, softirq, inside, first)
    numbers = np.arange(first, first + len(parent))
    table = _with(table, call_id=numbers, parent_id=np.where(parent < 0, -1, parent + first))
    return schema.conform("calls", table), contexts, outside


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


def _with(table: pa.Table, **columns: npt.NDArray[np.generic] | pa.Array) -> pa.Table:
    """``table`` with other values in some of its columns."""
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def _in_monotonic(table: pa.Table, convert: Convert) -> tuple[pa.Table, int]:
    """Both ends of each call converted; calls outside the clock mapping are left out and counted.

    Ends are converted, not durations: otherwise a child could extend beyond its parent. Parents are positions in
    the table.
    """
    start, good = convert(column(table, "start_ns"), "perf")
    end, end_good = convert(column(table, "start_ns") + column(table, "dur_ns"), "perf")
    good &= end_good
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
    own = np.maximum(dur - children, 0)
    return _with(table, parent_id=parent, start_ns=start, dur_ns=dur, self_ns=own), int((~good).sum())


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
    table: pa.Table,
    is_context: npt.NDArray[np.bool_],
    softirq: npt.NDArray[np.int32],
    inside: I64,
    first: int,
) -> pa.Table:
    """Table ``contexts``: intervals with the same innermost context."""
    rows = np.flatnonzero(is_context)
    parent = column(table, "parent_id")
    outer = np.where(parent < 0, -1, inside[np.maximum(parent, 0)])
    start = column(table, "start_ns")
    end = start + column(table, "dur_ns")
    found = innermost(rows, column(table, "cpu")[rows], start[rows], end[rows], outer[rows])
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
                "call_id": found.row + first,
                "others": pa.DictionaryArray.from_arrays(np.zeros(len(found.row), np.int32), [""]),
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
