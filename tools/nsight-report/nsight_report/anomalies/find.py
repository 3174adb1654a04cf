# SPDX-License-Identifier: GPL-2.0-only
"""The stage: tables in, anomalies of the slow messages out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from ..interval_joins import Int
from ..losses import Ledger
from ..selection.options import Selection
from ..selection.population import Population, select
from ..tables import schema
from ..tables.data_frames import column
from ..timeline import SIDES
from ..timeline.activity import Activity
from ..timeline.labelled import KINDS, UNTRACED, WAIT, Exposure
from ..timeline.machine import Machine, Names
from ..timeline.recording import Explain, Recording
from ..waits.reasons import is_explained
from . import functions
from .deviation import (
    adding_up,
    baseline_medians,
    deviations,
    latencies,
    median_latency,
    saved,
    without_saved,
)
from .functions import Measured
from .measurement import measure
from .other_threads import with_functions


def find(
    recording: Recording, options: Selection, against: Recording | None = None
) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    """Compare the slow slice of one application's messages with its baseline slice, of the same capture or of ``against``.

    Returns ``(table compared, table anomalies with categories still empty, losses, table message_counters)``.
    The phases of section 5.2 of the paper: unexpected or longer contexts, gaps with what preceded them,
    functions if both captures have them, overlaps with other messages. Raises BadInput when a slice is empty.
    """
    ledger, names = Ledger("anomalies"), Names()
    recordings = [recording] if against is None else [recording, against]
    population = _population(recordings, options, ledger)
    compared, activities = _measured(population, recordings, names)
    machine = activities[0].machine
    ledger.add("drops_of_several_connections", sum(of.n_unclear_drops for of in activities))
    messages = population.of[0].messages
    noise = column(messages["noise_ns"])
    frames = [_anomalies(one, machine, names.list, noise, options.explained) for one in compared]
    untraced = [one.slow.ns[one.slow.kind == UNTRACED] for one in compared]
    n_untraced = sum(
        len(np.unique(one.slow.row[one.slow.kind == UNTRACED])) for one in compared
    )  # several per message
    ledger.add(
        "slow_messages_with_untraced_time", n_untraced, untraced_ns=sum(int(ns.sum()) for ns in untraced)
    )
    every = pd.concat(frames, ignore_index=True)
    if activities[0].has_functions:
        every = with_functions(every, activities[0])
    if recording.explain is not None:
        every = _with_chains(every, messages, recording.explain)
    return population.table(), _table(every, messages), ledger.table(), _counters(compared, population)


class _Compared(NamedTuple):
    """Slow messages of one request type and their baseline: what each met, and what it called if that is known."""

    slow: Exposure
    called: Measured | None
    counted: pd.DataFrame
    baseline: Exposure
    usually: Measured | None
    usually_counted: pd.DataFrame
    n_baseline: int


def _population(recordings: list[Recording], options: Selection, ledger: Ledger) -> Population:
    chosen = select([r.compared() for r in recordings], options, ledger, [r.seen for r in recordings])
    return chosen.with_noise([r.noise_from(options.granularity_ns) for r in recordings])


def _measured(
    population: Population, recordings: list[Recording], names: Names
) -> tuple[list[_Compared], list[Activity]]:
    """The comparisons by request type, and the activity of cores: first during the slow messages, last during the baseline."""
    activities = [
        Activity(recording, of.messages, of.app, names)
        for recording, of in zip(recordings, population.of, strict=True)
    ]
    # With two captures, the capture with the baseline defines the usual frequency.
    usual_khz = activities[-1].frequencies.usual(population.of[-1].messages)
    for activity in activities:
        activity.at_frequency(usual_khz)
    functions_known = all(activity.has_functions for activity in activities)
    slow, baseline = map(list, zip(*population.groups(), strict=True))
    # In one capture both are measured together, since they are read together.
    wanted = [slow + baseline] if len(activities) == 1 else [slow, baseline]
    found = [m for a, w in zip(activities, wanted, strict=True) for m in measure(a, w, functions_known)]
    sets = zip(found[: len(slow)], found[len(slow) :], baseline, strict=True)
    return [_Compared(*of, *by, len(rows)) for of, by, rows in sets], activities


def _anomalies(
    of: _Compared, machine: Machine, names: list[str], noise: Int, explained: float
) -> pd.DataFrame:
    usual = adding_up(baseline_medians(of.baseline, of.n_baseline), of.baseline, of.n_baseline)
    frame = deviations(of.slow, usual, machine, noise)
    if of.called is not None and of.usually is not None:
        inside, looked_into = functions.find(of.called, of.usually, of.n_baseline, names, noise, explained)
        frame = pd.concat([_without(frame, looked_into, names), inside])
    late = latencies(of.slow) - median_latency(of.baseline)
    return without_saved(frame, saved(of.slow, usual), late)


def _with_chains(frame: pd.DataFrame, requests: pd.DataFrame, explain: Explain) -> pd.DataFrame:
    """``frame``, where the path of each wait is the wait chain of its longest interval."""
    of_thread = (frame["kind"] == KINDS[WAIT]) & frame["subject"].astype(str).map(is_explained)
    at = np.flatnonzero(of_thread.to_numpy(bool))
    of, start, end = (frame[name].to_numpy(np.int64)[at] for name in ("row", "start_ns", "end_ns"))
    read = column(requests["read_ns"])[of] > start
    tid = np.where(read, column(requests["tid"])[of], column(requests["send_tid"])[of])
    path = frame["path"].to_numpy(object, copy=True)
    path[at] = explain.chains(tid, start, end)
    return frame.assign(path=path)


def _table(frame: pd.DataFrame, messages: pd.DataFrame) -> pa.Table:
    ids = messages["message_id"].to_numpy(np.int64)
    frame["message_id"] = ids[frame.pop("row").to_numpy(np.int64)]
    frame["category"], frame["located"] = "", False
    frame["took_ns"] = frame["deviation_ns"]
    frame = frame.sort_values(["message_id", "side", "deviation_ns"], ascending=[True, True, False])
    return schema.conform("anomalies", pa.Table.from_pandas(_strings(frame), preserve_index=False))


def _counters(compared: list[_Compared], population: Population) -> pa.Table:
    """Counter values of the work on each message."""
    sides = (
        ("slow", 0, [of.counted for of in compared]),
        ("baseline", -1, [of.usually_counted for of in compared]),
    )
    frames = []
    for role, which, parts in sides:
        ids = column(population.of[which].messages["message_id"])
        of = pd.concat(parts, ignore_index=True)
        frames.append(of.assign(message_id=ids[of.pop("row").to_numpy(np.int64)], role=role))
    every = (
        pd.concat(frames).sort_values(["role", "message_id", "counter"]).astype({"counter": str, "role": str})
    )
    return schema.conform("message_counters", pa.Table.from_pandas(every, preserve_index=False))


def _without(frame: pd.DataFrame, labels: Int, names: list[str]) -> pd.DataFrame:
    """Rows of ``frame`` without the labels (side, kind, subject) that functions replace."""
    dropped = {(SIDES[side], KINDS[kind], names[subject]) for side, kind, subject in labels.tolist()}
    keys = zip(frame["side"], frame["kind"], frame["subject"], strict=True)
    return frame[[key not in dropped for key in keys]]


def _strings(frame: pd.DataFrame) -> pd.DataFrame:
    """Arrow cannot guess the type of an empty object column."""
    text = ["side", "anomaly", "subject", "kind", "category", "path", "dso"]
    return (
        frame.astype(dict.fromkeys(text, "category"))
        if len(frame)
        else frame.astype(dict.fromkeys(text, "str"))
    )
