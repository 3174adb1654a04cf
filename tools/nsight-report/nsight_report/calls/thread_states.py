# SPDX-License-Identifier: GPL-2.0-only
"""``thread_states``: running, waiting for a core, or asleep and why, for every thread.

A thread runs where ``calls`` says so. Between two runs, its state at the switch
(``prev_state`` of sched_switch) holds until something wakes it; then it waits for a core.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..capture.perf_data import CODE
from ..losses import Ledger
from ..tables import schema
from .contexts import THREAD, comms

Ints = npt.NDArray[np.int64]

STATES = ("running", "runnable", "sleeping", "blocked", "stopped", "dead", "unknown", "waiting", "throttled")
RUNNING, RUNNABLE, SLEEPING, BLOCKED, STOPPED, DEAD, UNKNOWN, WAITING, THROTTLED = range(len(STATES))

#: State in switch records, instead of prev_state, for a thread that left its core without being preempted.
_BY_ITSELF = -1

# Bits of prev_state, include/linux/sched.h and include/trace/events/sched.h. 0x100 is
# TASK_REPORT_MAX: preempted, whatever state the thread was about to enter.
_PREEMPTED = 0x100
_BITS = (
    (0x01, SLEEPING),  # S
    (0x02, BLOCKED),  # D
    (0x04, STOPPED),  # T
    (0x08, STOPPED),  # t
    (0x10, DEAD),  # X
    (0x20, DEAD),  # Z
    (0x40, SLEEPING),  # P, parked
    (0x80, SLEEPING),  # I, idle kernel thread
)


def decode_prev_state(prev_state: Ints) -> npt.NDArray[np.int8]:
    """The state (index into STATES) in which a thread leaves its core; R and R+ are runnable."""
    state = np.full(len(prev_state), UNKNOWN, np.int8)
    for bit, meaning in reversed(_BITS):  # the lowest bit decides, as in the kernel's own output
        state[prev_state & bit != 0] = meaning
    state[(prev_state & 0xFF == 0) | (prev_state & _PREEMPTED != 0)] = RUNNABLE
    state[prev_state == _BY_ITSELF] = WAITING
    return state


# A wake-up on another core can be stamped before the switch of a thread that is falling asleep
# (try_to_wake_up() then waits for the thread to leave its core): a few us of __schedule().
_OVERTAKEN_NS = 20_000

# Elements of a thread's time line
_START, _END, _WAKE, _MIGRATE = range(4)


@dataclass(frozen=True)
class _Runs:
    """Times on a core, ordered by thread and time; then one row for the time before the first known point of each thread.

    These last rows (``n`` of the first kind) have no length and end where the thread is first
    known. ``state``: state in which the thread left the core. Every row is followed by an interval off
    the core, so row numbers also number those intervals.
    """

    n: int
    tid: Ints
    start: Ints
    end: Ints
    cpu: Ints
    pid: Ints
    comm: Ints
    state: npt.NDArray[np.int8]


@dataclass(frozen=True)
class _Line:
    """All elements ordered by thread and time. ``row``: of _Runs, or of the wake-ups."""

    tid: Ints
    ts: Ints
    what: Ints
    row: Ints
    cpu: Ints


def build(
    events: npt.NDArray[np.void],
    calls: npt.NDArray[np.void],
    strings: list[str],
    ledger: Ledger,
    complete: bool = False,
) -> pa.Table:
    """Table ``thread_states`` of schema.py.

    ``events``: array of perf_data.EVENT; ``calls``: array of contexts.CALL made of them; ``complete``: the
    recorder writes wake-ups that no tracepoint showed, too. A thread's intervals tile the time from its creation or the first event until the last event.
    """
    timed = events[(events["ts"] > 0) & (events["kind"] != CODE["exit"])]
    first, last = (int(timed["ts"][0]), int(timed["ts"][-1])) if len(timed) else (0, 0)
    wakes = timed[
        np.isin(timed["kind"], [CODE["sched_waking"], CODE["sched_wakeup"], CODE["sched_wakeup_new"]])
    ]
    wakes = wakes[wakes["a"] > 0]
    runs = _find_runs(events, timed, calls, wakes, first, ledger)
    line = _time_line(runs, wakes, timed[timed["kind"] == CODE["sched_migrate_task"]])
    told = timed[timed["kind"] == CODE["cpu_quota"]]
    table, n_placed = _intervals(
        runs, wakes, line, last, _without_quota(runs, told), strings, ledger, complete
    )
    ledger.add("quota_wait_placed", n_placed)
    ledger.add("quota_wait_unknown", len(told) - n_placed)
    return table


def _find_runs(
    events: npt.NDArray[np.void],
    timed: npt.NDArray[np.void],
    calls: npt.NDArray[np.void],
    wakes: npt.NDArray[np.void],
    first: int,
    ledger: Ledger,
) -> _Runs:
    on_core = calls[(calls["kind"] == THREAD) & (calls["depth"] == 0) & (calls["tid"] > 0)]
    on_core = on_core[np.lexsort((on_core["end"], on_core["start"], on_core["tid"]))]
    # Where events were lost, a thread may seem to be on two cores at once. It had left the first one when the
    # second one got it; otherwise its time there would count twice.
    same = on_core["tid"][1:] == on_core["tid"][:-1]
    moved = np.append(same & (on_core["start"][1:] < on_core["end"][:-1]), False)[: len(on_core)]
    on_core["end"][moved] = on_core["start"][np.flatnonzero(moved) + 1]
    ledger.add("thread_on_two_cores", int(np.count_nonzero(moved)))
    # Switch records, the only source with Intel PT, show whether a thread was preempted.
    # With the tracepoint they repeat the same, a little later.
    kind = CODE["sched_switch"] if (timed["kind"] == CODE["sched_switch"]).any() else CODE["switch_out"]
    switches = timed[timed["kind"] == kind]
    out = pd.DataFrame(
        {
            "tid": switches["tid"],
            "end": switches["ts"].astype(np.int64),
            "prev": switches["b"]
            if kind == CODE["sched_switch"]
            else np.where(switches["c"] == 1, _PREEMPTED, _BY_ITSELF),
        }
    )
    ends = pd.DataFrame({"tid": on_core["tid"], "end": on_core["end"]})
    prev = ends.merge(out.drop_duplicates(["tid", "end"], keep="last"), how="left")["prev"]
    state = decode_prev_state(prev.fillna(0).to_numpy(np.int64))
    state[prev.isna().to_numpy()] = UNKNOWN
    state[moved] = RUNNABLE  # without any duration

    tids = np.unique(np.concatenate([on_core["tid"], wakes["a"]]).astype(np.int64))
    known = np.full(len(tids), first, np.int64)
    forks = timed[timed["kind"] == CODE["sched_process_fork"]]
    # a tid that does something before it is created was in use before
    seen = pd.concat(
        [pd.Series(on_core["start"], on_core["tid"]), pd.Series(wakes["ts"].astype(np.int64), wakes["a"])]
    )
    born = pd.Series(forks["ts"].astype(np.int64), forks["a"]).groupby(level=0).min().reindex(tids)
    is_new = (born <= seen.groupby(level=0).min().reindex(tids)).to_numpy()
    known[is_new] = born.to_numpy()[is_new].astype(np.int64)

    comm = _first_known(tids, [(on_core["tid"], on_core["name"]), (wakes["a"], wakes["c"] & 0xFFFFFFFF)], 0)
    told = events[np.isin(events["kind"], [CODE["comm"], CODE["fork"]])]
    pid = _first_known(tids, [(on_core["tid"], on_core["pid"]), (told["a"], told["pid"])], -1)

    def both(name: str, before: Ints) -> Ints:
        return np.concatenate([on_core[name].astype(np.int64), before])

    return _Runs(
        n=len(on_core),
        tid=both("tid", tids),
        start=both("start", known),
        end=both("end", known),
        cpu=both("cpu", np.full(len(tids), -1)),
        pid=both("pid", pid),
        comm=both("name", comm),
        state=np.concatenate([state, np.full(len(tids), UNKNOWN, np.int8)]),
    )


def _without_quota(runs: _Runs, told: npt.NDArray[np.void]) -> Ints:
    """For each run, how long (ns) its thread was ready before it but without CPU quota; ``told`` at its begin, else at its end."""
    ns = pd.Series(told["b"], pd.MultiIndex.from_arrays([told["a"], told["ts"].astype(np.int64)]))
    ns = ns.groupby(level=[0, 1]).max()
    begin, end = (
        ns.reindex(pd.MultiIndex.from_arrays([runs.tid[: runs.n], of]), fill_value=0).to_numpy(np.int64)
        for of in (runs.start[: runs.n], runs.end[: runs.n])
    )
    # Reported when it left the core: the switch that gave it the core was not seen.
    return np.where(begin > 0, begin, end)


def _first_known(tids: Ints, sources: list[tuple[npt.NDArray, npt.NDArray]], unknown: int) -> Ints:
    """For each of ``tids``, the first value above ``unknown`` in the (tid, value) sources."""
    result = np.full(len(tids), unknown, np.int64)
    for of, values in reversed(sources):
        use = np.isin(of, tids) & (values > unknown)
        at = np.searchsorted(tids, of[use])
        result[at[::-1]] = values[use][::-1]
    return result


def _time_line(runs: _Runs, wakes: npt.NDArray[np.void], moves: npt.NDArray[np.void]) -> _Line:
    n_rows = len(runs.tid)
    rows = np.arange(n_rows)
    tids = np.unique(runs.tid)
    moves = moves[np.isin(moves["a"], tids)]
    parts = (
        (runs.tid[: runs.n], runs.start[: runs.n], _START, rows[: runs.n], runs.cpu[: runs.n]),
        (runs.tid, runs.end, _END, rows, runs.cpu),
        (wakes["a"], wakes["ts"], _WAKE, np.arange(len(wakes)), wakes["b"]),
        (moves["a"], moves["ts"], _MIGRATE, np.arange(len(moves)), moves["b"]),
    )
    tid, ts, row, cpu = (
        np.concatenate([np.asarray(part[i], np.int64) for part in parts]) for i in (0, 1, 3, 4)
    )
    what = np.concatenate([np.full(len(part[0]), part[2], np.int64) for part in parts])
    # At equal times a wake-up comes after the end of a run and before the start of the next;
    # the start of a run without length must stay before its own end.
    late = (what == _START) & (runs.end[np.minimum(row, n_rows - 1)] > ts)
    rank = np.select(
        [(what == _END) & (row >= runs.n), what == _START, what == _END],
        [np.int64(-1), 2 * row, 2 * row + 1],
        2 * n_rows + what,
    )
    order = np.lexsort((rank, late, ts, tid))
    return _Line(tid[order], ts[order], what[order], row[order], cpu[order])


def _intervals(
    runs: _Runs,
    wakes: npt.NDArray[np.void],
    line: _Line,
    last: int,
    quota: Ints,
    strings: list[str],
    ledger: Ledger,
    complete: bool,
) -> tuple[pa.Table, int]:
    """The table, and the number of waits that include time without CPU quota."""
    n_rows, at = len(runs.tid), np.arange(len(line.ts))
    is_start, is_end, is_wake = line.what == _START, line.what == _END, line.what == _WAKE
    # each thread's first element is the end of its row "before", so this stays within threads
    before = np.maximum.accumulate(np.where(is_start | is_end, at, 0))
    off_core = line.what[before] == _END
    row = line.row[before]

    # the end of each interval off the core: at the thread's next start, or at the end of the recording
    next_start = np.minimum.accumulate(np.where(is_start, at, len(at))[::-1])[::-1]
    ends = at[is_end]
    following = np.append(line.tid, -1)[next_start[ends]] == line.tid[ends]
    until, returns = np.full(n_rows, last), np.zeros(n_rows, bool)
    until[line.row[ends]] = np.where(following, np.append(line.ts, 0)[next_start[ends]], last)
    throttled = np.zeros(n_rows, np.int64)
    throttled[line.row[ends[following]]] = quota[line.row[next_start[ends[following]]]]
    returns[line.row[ends]] = following
    until = np.maximum(until, runs.end)

    # the first wake-up of each interval off the core; of several values the last one stays
    woken_by = np.full(n_rows, -1)
    woken_by[row[is_wake & off_core][::-1]] = at[is_wake & off_core][::-1]
    preempted = runs.state == RUNNABLE
    early = np.full(n_rows, -1)
    early[row[is_wake & ~off_core]] = at[is_wake & ~off_core]
    overtaken = (woken_by < 0) & (early >= 0) & returns & ~preempted & (runs.state != UNKNOWN)
    # If no wake-up is missing, the last one before the switch must be it, however long the host took the core away.
    overtaken &= complete | (runs.end - line.ts[early] < _OVERTAKEN_NS)
    woken_by[overtaken] = early[overtaken]
    woken = (woken_by >= 0) & ~preempted

    ready = np.where(preempted, runs.end, until)
    ready[woken] = np.maximum(line.ts[woken_by[woken]], runs.end[woken])
    ledger.add(
        "waking_event_missing",
        int((returns & ~woken & np.isin(runs.state, [SLEEPING, BLOCKED, STOPPED])).sum()),
    )
    ledger.add("off_cpu_state_unknown", int((runs.state[: runs.n] == UNKNOWN).sum() - _open_ends(runs, last)))

    ledger.add("wake_ups_not_recorded", int((runs.state[: runs.n] == WAITING).sum()))

    # runnable: from the wake-up (or preemption) on, cut where the thread changes queues
    waiting = np.flatnonzero(ready < until)
    target = np.where(woken[waiting], line.cpu[woken_by[waiting]], runs.cpu[waiting])
    moved = at[(line.what >= _WAKE) & off_core]
    moved = moved[line.ts[moved] >= ready[row[moved]]]
    moved = moved[line.ts[moved] < until[row[moved]]]
    piece_row = np.concatenate([waiting, row[moved]])
    piece_start = np.concatenate([ready[waiting], line.ts[moved]])
    piece_cpu = np.concatenate([target, line.cpu[moved]])
    order = np.lexsort((np.arange(len(piece_row)), piece_start, piece_row))
    piece_row, piece_start, piece_cpu = piece_row[order], piece_start[order], piece_cpu[order]
    new = np.append(True, (piece_row[1:] != piece_row[:-1]) | (piece_cpu[1:] != piece_cpu[:-1]))[
        : len(piece_row)
    ]
    piece_row, piece_start, piece_cpu = piece_row[new], piece_start[new], piece_cpu[new]
    same = np.append(piece_row[1:] == piece_row[:-1], False)[: len(piece_row)]
    piece_end = np.where(same, np.append(piece_start[1:], 0)[: len(piece_row)], until[piece_row])

    # A quota ran out while the thread had the core, or before it was woken: its wait comes first.
    piece_ready = np.clip(ready[piece_row] + throttled[piece_row], piece_start, piece_end)

    waker = np.full(n_rows, -1)
    waker[woken] = wakes["tid"][line.row[woken_by[woken]]]
    asleep = np.flatnonzero((ready > runs.end) & ~preempted)
    rows = np.concatenate([np.arange(runs.n), asleep, piece_row, piece_row])
    n_pieces = len(piece_row)
    table = pd.DataFrame(
        {
            "row": rows,
            "tid": runs.tid[rows],
            "start_ns": np.concatenate([runs.start[: runs.n], runs.end[asleep], piece_start, piece_ready]),
            "end_ns": np.concatenate([runs.end[: runs.n], ready[asleep], piece_ready, piece_end]),
            "state": np.concatenate(
                [
                    np.full(runs.n, RUNNING),
                    runs.state[asleep],
                    np.full(n_pieces, THROTTLED),
                    np.full(n_pieces, RUNNABLE),
                ]
            ),
            "cpu": np.concatenate([runs.cpu[: runs.n], runs.cpu[asleep], piece_cpu, piece_cpu]),
            "waker_tid": np.concatenate([np.full(runs.n + len(asleep), -1), np.tile(waker[piece_row], 2)]),
            "preempted": np.concatenate(
                [np.zeros(runs.n + len(asleep), bool), np.tile(preempted[piece_row], 2)]
            ),
        }
    )
    table = table[table["end_ns"] > table["start_ns"]].sort_values(["tid", "start_ns"], kind="stable")
    of = table["row"].to_numpy()
    columns = {name: table[name].to_numpy() for name in ("start_ns", "end_ns", "preempted")}
    for name in ("tid", "cpu", "waker_tid"):
        columns[name] = table[name].to_numpy().astype(np.int32)
    columns["pid"] = runs.pid[of].astype(np.int32)
    columns["comm"] = comms(runs.comm[of], runs.tid[of], strings)
    columns["state"] = pa.DictionaryArray.from_arrays(
        pa.array(table["state"].to_numpy().astype(np.int32)), pa.array(STATES)
    )
    n_placed = len(np.unique(piece_row[piece_ready > piece_start]))
    return schema.conform("thread_states", pa.table(columns)), n_placed


def _open_ends(runs: _Runs, last: int) -> int:
    """Runs that were cut by the end of the recording: nothing is missing from them."""
    final = np.append(np.diff(runs.tid[: runs.n]) != 0, True)[: runs.n]
    return int((final & (runs.state[: runs.n] == UNKNOWN)).sum())
