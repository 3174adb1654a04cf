# SPDX-License-Identifier: GPL-2.0-only
"""Which messages are exported, and the related parts of the other tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..errors import BadInput
from ..selection.slices import Slice
from ..selection.windows import Window, around
from ..stage import REQUEST
from ..summary import selected
from ..tables import schema
from ..tables.data_frames import each, to_pandas
from ..tables.intervals import is_in

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables
    from ..tables.intervals import IntervalTable
    from ..tables.messages import Messages

MARKS = {
    "rx": (
        ("nic_ns", "NIC", None),
        ("arrival_ns", "arrival", "recv_cpu"),
        ("handoff_ns", "hand-off", "handoff_cpu"),
        ("app_ns", "read", "app_cpu"),
    ),
    "tx": (
        ("call_ns", "send call", "app_cpu"),
        ("app_ns", "send done", "app_cpu"),
        ("driver_ns", "driver", "recv_cpu"),
        ("completion_ns", "NIC done", None),
    ),
    REQUEST: (
        ("nic_ns", "NIC", None),
        ("arrival_ns", "arrival", "recv_cpu"),
        ("handoff_ns", "hand-off", "handoff_cpu"),
        ("read_ns", "read", "app_cpu"),
        ("send_ns", "send call", "send_cpu"),
        ("left_ns", "driver", "driver_cpu"),
        ("completion_ns", "NIC done", None),
    ),
    "interval": (
        # The core of its begin is known only if it was handed over; the core of the hand-over is never known.
        ("call_ns", "begin", "recv_cpu"),
        ("handoff_ns", "hand-over", None),
        ("app_ns", "end", "app_cpu"),
    ),
}


#: Columns of messages that name a core.
_CORES = ("recv_cpu", "handoff_cpu", "app_cpu")


@dataclass(frozen=True)
class Mark:
    """A timestamp of a message; ``cpu`` is None if the NIC took it, or if the core is unknown."""

    name: str
    ns: int
    cpu: int | None


def marks(message: Any) -> list[Mark]:
    """The timestamps of ``message`` (a row of ``messages``), in time order."""
    found = []
    for column, name, core in MARKS[str(message.direction)]:
        at = getattr(message, column)
        if pd.isna(at):
            continue
        cpu = getattr(message, core) if core else None
        found.append(Mark(name, int(at), None if cpu is None or pd.isna(cpu) else int(cpu)))
    return sorted(found, key=lambda mark: mark.ns)


@dataclass(frozen=True)
class Chosen:
    """``messages`` to export, ``others`` that were in progress on the same cores, and windows of the cores.

    ``anomalies`` and ``coverage``: of the messages that have some. ``states``: of the threads that read or sent them,
    and of threads that ran or waited on these cores. ``work``: which threads had received requests (``request_work``).
    """

    messages: pd.DataFrame
    others: pd.DataFrame
    anomalies: pd.DataFrame
    coverage: pd.DataFrame
    states: pd.DataFrame
    windows: list[Window]
    work: pd.DataFrame


#: Names of roles before 0.2, accepted for one release.
_FORMER = {"target": "slow", "reference": "baseline"}


def check(spec: str) -> None:
    """Raises for a ``spec`` that ``messages_of`` accepts for no capture."""
    if _FORMER.get(spec, spec) not in ("all", "slow", "baseline") and not _are_numbers(spec):
        Slice.parse(spec)


def _are_numbers(spec: str) -> bool:
    return all(word.isdecimal() for word in spec.split(","))


def messages_of(capture: CaptureTables, spec: str) -> pd.DataFrame:
    """Rows of ``messages`` selected by ``spec``: slow, baseline, all, numbers, or what ``--slow`` takes.

    Raises BadInput if there are none.
    """
    spec = _FORMER.get(spec, spec)
    compared, every = capture.compared, capture.diagnosed_messages
    if spec == "all":
        found = selected(capture)
    elif spec in ("slow", "baseline"):
        if spec == "baseline" and capture.options.against:
            raise BadInput(
                "the baseline messages are of another capture", f"export from {capture.options.against}"
            )
        numbers = compared.loc[compared["role"].astype(str) == spec, "message_id"]
        found = every.rows(numbers.to_numpy(np.int64))
    elif _are_numbers(spec):
        found = _numbered(every, [int(word) for word in spec.split(",")])
    else:
        slice_ = Slice.parse(spec)
        candidates = selected(capture, ["first_ns", *slice_.columns()])
        origin = int(candidates["first_ns"].min()) if len(candidates) else 0
        found = every.rows(candidates["message_id"].to_numpy()[slice_.rows(candidates, origin)])
    if not len(found):
        raise BadInput(
            f"{capture.path}: no message is {spec}", "nsight-report top CAPTURE --by message lists some"
        )
    return found


def _numbered(messages: Messages, numbers: list[int]) -> pd.DataFrame:
    # No message has a number that does not fit into 64 bits.
    found = messages.rows(np.array([number for number in numbers if number < 1 << 63], np.int64))
    missing = sorted(set(numbers) - set(found["message_id"].tolist()))
    if missing:
        raise no_message(missing[0], messages.num_rows)
    return found


def no_message(number: int, n: int) -> BadInput:
    """The error for a number that no message has."""
    have = f"messages are 0 to {n - 1}" if n else "the capture has no message"
    return BadInput(f"no message {number}: {have}", "nsight-report top CAPTURE --by message lists some")


def choose(capture: CaptureTables, spec: str, with_work: bool = False) -> Chosen:
    """The rows related to the messages of ``spec`` (see ``messages_of``). ``with_work``: also which threads had requests."""
    found = messages_of(capture, spec)
    windows = around(found)
    own = found["message_id"]
    asked = with_work and capture.options.direction == REQUEST
    work = capture.work(own.tolist()) if asked else to_pandas(schema.empty("request_work"))
    threads = {*found["tid"].tolist(), *work["tid"].tolist()}
    anomalies, coverage = capture.anomalies, capture.coverage
    return Chosen(
        found,
        _others(capture.diagnosed_messages, own, windows),
        anomalies[anomalies["message_id"].isin(own)],
        coverage[coverage["message_id"].isin(own)],
        _states(capture.stored_states, threads, windows),
        windows,
        work,
    )


def _others(messages: Messages, own: pd.Series[int], windows: list[Window]) -> pd.DataFrame:
    def near(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        hit = [_overlap(rows, cpu, "first_ns", "last_ns", windows) for cpu in _CORES]
        return np.logical_or.reduce(hit) & ~rows["message_id"].isin(own).to_numpy(bool)

    names = ("message_id", *_CORES, "first_ns", "last_ns")
    return messages.rows(messages.columns(names, near)["message_id"].to_numpy())


def _states(states: IntervalTable, threads: set[int], windows: list[Window]) -> pd.DataFrame:
    """Intervals of thread states: on the windows' cores, and of the messages' own ``threads`` at that time.

    Reads a group of rows at a time: the table is as long as the recording.
    """
    anywhere = [Window(0, w.begin_ns, w.end_ns) for w in windows]

    def near(some: pa.Table) -> pa.Table:
        rows = some.select(["tid", "cpu", "start_ns", "end_ns"]).to_pandas()
        own = rows["tid"].isin(threads) & _overlap(
            rows.assign(anywhere=0), "anywhere", "start_ns", "end_ns", anywhere
        )
        asleep = is_in(some["state"], pa.array(["sleeping", "waiting", "dead", "unknown"]))
        beside = _overlap(rows, "cpu", "start_ns", "end_ns", windows)
        return some.filter(pa.array((beside | own.to_numpy(bool)) & ~asleep))

    found = pa.concat_tables(near(some) for some in states.batches())
    return to_pandas(found.unify_dictionaries())


def _overlap(
    rows: pd.DataFrame, cpu: str, begin: str, end: str, windows: list[Window]
) -> npt.NDArray[np.bool_]:
    """Which rows overlap a window of their core."""
    hit = np.zeros(len(rows), bool)
    cores = rows[cpu].fillna(-1).to_numpy(np.int64)
    begins, ends = rows[begin].to_numpy(np.int64), rows[end].to_numpy(np.int64)
    for core in {w.cpu for w in windows}:
        low = np.sort([w.begin_ns for w in windows if w.cpu == core])
        high = np.sort([w.end_ns for w in windows if w.cpu == core])
        on = np.flatnonzero(cores == core)
        # Windows that begin before the row ends, minus windows that end before it begins.
        hit[on] = np.searchsorted(low, ends[on]) > np.searchsorted(high, begins[on], side="right")
    return hit


def tracks(messages: pd.DataFrame) -> npt.NDArray[np.int64]:
    """A track for each message, in table order, so that no two in a track overlap; as few as possible."""
    import heapq

    free: list[int] = []
    busy: list[tuple[int, int]] = []  # end, track
    found = np.empty(len(messages), np.int64)
    for i, row in enumerate(each(messages[["first_ns", "last_ns"]])):
        while busy and busy[0][0] <= row.first_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        track = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (int(row.last_ns), track))
        found[i] = track
    return found
