# SPDX-License-Identifier: GPL-2.0-only
"""What blocked messages waited for (section 5.2 of the paper): head-of-line blocking compared with the fastest messages.

A message that waits behind others waits while these are processed. The fastest messages show what that
processing usually consists of: nothing delayed them. Time that the messages ahead took beyond that makes the queue
slow, not only long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..attribution.categories import Categories, load
from ..interval_joins import Int
from ..selection.application import App, of_app
from ..selection.options import Selection
from ..tables import schema
from ..tables.data_frames import column, to_pandas
from ..timeline import SIDES, A, R, exposure
from ..timeline.activity import Activity
from ..timeline.labelled import HOL, LabelledIntervals
from ..timeline.recording import Recording
from .self_time import Inside

#: The fastest messages: this share, but at least and at most these numbers.
FASTEST, FEWEST, MOST = 0.05, 10, 500

_COLUMNS = ("first_ns", "last_ns", "latency_ns", "app_ns", "conn_id", "tid", "begin_tid", "pid")


@dataclass(frozen=True)
class _Work:
    """What intervals (``of``: their owner) consist of, by functions or contexts (``subject``) and call paths (``path``)."""

    of: Int
    category: npt.NDArray[np.object_]
    subject: npt.NDArray[np.object_]
    path: Int
    ns: Int

    def frame(self) -> pd.DataFrame:
        """One row per owner and category; ``subject``: the one with most of the time, ``path``: the one with most of that."""
        keys = ["of", "category"]
        columns = {name: getattr(self, name) for name in (*keys, "subject", "path", "ns")}
        frame = pd.DataFrame(columns).groupby([*keys, "subject", "path"])["ns"].sum().reset_index()
        frame["whole"] = frame.groupby([*keys, "subject"])["ns"].transform("sum")
        order = [*keys, "whole", "subject", "ns", "path"]
        frame = frame.sort_values(order, ascending=[True, True, False, True, False, True])
        frame["ns"] = frame.groupby(keys)["ns"].transform("sum")
        return frame.drop_duplicates(keys).reset_index(drop=True)


def break_down(
    recording: Recording,
    anomalies: pa.Table,
    options: Selection,
    seen: tuple[int, int] | None = None,
    only: Int | None = None,
) -> pa.Table:
    """Table ``hol``: the head-of-line blocking in ``anomalies``, by categories.

    ``seen``: when cores were recorded; ``only``: numbers of the messages whose calls were decoded, if not all were.
    """
    found = to_pandas(anomalies.filter(pc.equal(anomalies["anomaly"].cast(pa.string()), "hol")))
    if not len(found):
        return schema.empty("hol")
    every = recording.compared()
    of_server = of_app(every, options, _COLUMNS)
    fastest = _fastest(of_server, seen, only)
    messages = every.rows(np.append(fastest, column(found["message_id"])))
    ids = column(messages["message_id"])
    activity = Activity(recording, messages, App.of(of_server))
    del of_server  # it grows with the recording, and the next steps need memory
    blocked = np.unique(np.searchsorted(ids, column(found["message_id"])))
    waited = LabelledIntervals.join(
        [exposure.measure(messages, of[0], then, (HOL,))[1] for of, then in activity.parts([blocked])]
    )
    own = _own_work(fastest, activity)
    cpu, start, end = (
        np.concatenate([getattr(waited, f), own[i]]) for f, i in (("cpu", 1), ("start", 2), ("end", 3))
    )
    inside = Inside(activity, cpu, start, end)
    rows = load(options.categories)
    usual = _usual(own, inside, rows, len(fastest))
    ahead = _ahead(waited, activity)
    observed = _categorised(
        waited.row * len(SIDES) + waited.side, waited.cpu, waited.start, waited.end, inside, rows
    )
    work = observed.frame()
    texts = {path: inside.callers(path) for path in set(work["path"].tolist())}
    work["callers"] = work["path"].map(texts)
    return _table(_rows(work, usual, ahead, found, ids))


def _fastest(messages: pd.DataFrame, seen: tuple[int, int] | None, only: Int | None) -> Int:
    """Numbers of the fastest messages (``_COLUMNS``) whose processing was recorded."""
    ids, first, last, latency, app = (messages[c].to_numpy() for c in ("message_id", *_COLUMNS[:4]))
    good = app >= 0
    if seen is not None:
        good &= (first >= seen[0]) & (last <= seen[1])
    if only is not None:
        good &= np.isin(ids, only)
    rows = np.flatnonzero(good)
    n = int(np.clip(len(rows) * FASTEST, FEWEST, MOST))
    return ids[rows[np.argsort(latency[rows], kind="stable")[:n]]]


def _own_work(ids: Int, activity: Activity) -> tuple[Int, Int, Int, Int]:
    """Intervals in which messages were worked on: (position in ``ids`` and side as one number, core, begin, end)."""
    order = np.argsort(ids)
    parts = []
    for side, tiles in ((R, activity.machine.cores), (A, activity.machine.threads)):
        at = np.flatnonzero(np.isin(tiles.owner, ids) & (tiles.end < np.iinfo(np.int64).max))
        who = order[np.searchsorted(ids[order], tiles.owner[at])]
        if side == R:
            parts.append((who * len(SIDES) + side, tiles.group[at], tiles.start[at], tiles.end[at]))
            continue
        piece, cpu, low, high = activity.cores_of(tiles.group[at], tiles.start[at], tiles.end[at], "running")
        parts.append((who[piece] * len(SIDES) + side, cpu, low, high))
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return joined[0], joined[1], joined[2], joined[3]


def _categorised(of: Int, cpu: Int, start: Int, end: Int, inside: Inside, rows: Categories) -> _Work:
    query, name, path, ns = inside.of(cpu, start, end)
    used, at = np.unique(name, return_inverse=True)
    asked = [inside.names[int(n)] for n in used]
    words = np.array([rows.find(*name)[0] for name in asked] + [""], object)
    subjects = np.array([subject for _, subject, _ in asked] + [""], object)
    at = at.reshape(-1)
    return _Work(of[query], words[at], subjects[at], path, ns)


def _usual(own: tuple[Int, Int, Int, Int], inside: Inside, rows: Categories, n_fastest: int) -> pd.DataFrame:
    """Median ns that a fastest message takes in each category, by side; absence counts as 0."""
    frame = _categorised(*own, inside, rows).frame()
    frame["side"] = frame["of"] % len(SIDES)
    frame = frame.sort_values("ns")
    groups = frame.groupby(["side", "category"])["ns"]
    rank = n_fastest // 2 - (n_fastest - groups.transform("size"))
    return frame[groups.cumcount() == rank][["side", "category", "ns"]].rename(columns={"ns": "one_ns"})


def _ahead(waited: LabelledIntervals, activity: Activity) -> pd.DataFrame:
    """By message and side: how many messages it waited for (``n_ahead``), and how much of them in total (``parts``)."""
    key = waited.row * len(SIDES) + waited.side
    frame = pd.DataFrame({"of": key, "other": waited.other, "ns": waited.end - waited.start})
    frame = frame.groupby(["of", "other"])["ns"].sum().reset_index()
    # From a thread's time until its next read, only the time in which it ran.
    others = np.unique(waited.other[waited.other >= 0])
    of, _, start, end = _own_work(others, activity)
    whole = pd.DataFrame({"other": others[of // len(SIDES)], "side": of % len(SIDES), "whole": end - start})
    frame["side"] = frame["of"] % len(SIDES)
    sums = whole.groupby(["other", "side"])["whole"].sum().reset_index()
    frame = frame.merge(sums, on=["other", "side"], how="left")
    frame["part"] = (frame["ns"] / frame["whole"]).clip(upper=1.0).fillna(1.0)
    return frame.groupby("of").agg(n_ahead=("other", "nunique"), parts=("part", "sum")).reset_index()


def _rows(
    observed: pd.DataFrame, usual: pd.DataFrame, ahead: pd.DataFrame, found: pd.DataFrame, ids: Int
) -> pd.DataFrame:
    sides = np.array(SIDES, object)
    found = found.assign(
        of=np.searchsorted(ids, column(found["message_id"])) * len(SIDES)
        + found["side"].astype(str).map(SIDES.index).to_numpy(np.int64)
    )
    claimed = found.groupby("of")["deviation_ns"].sum().astype(np.int64).rename("claimed").reset_index()
    frame = observed.merge(claimed, on="of").merge(ahead, on="of")
    frame["side"] = frame["of"] % len(SIDES)
    frame = frame.merge(usual, on=["side", "category"], how="left")
    frame["in_fastest"] = frame["one_ns"].fillna(0) > 0
    frame["fastest_ns"] = (frame["one_ns"].fillna(0) * frame["parts"]).round().astype(np.int64)
    frame = frame.rename(columns={"ns": "observed_ns"})
    frame["beyond_ns"] = frame["observed_ns"] - frame["fastest_ns"]
    frame["deviation_ns"] = _shared(frame)
    frame["message_id"] = ids[frame["of"].to_numpy() // len(SIDES)]
    frame["side"] = sides[frame["side"].to_numpy()]
    return frame.sort_values(
        ["message_id", "side", "deviation_ns", "category"], ascending=[True, True, False, True]
    )


def _shared(frame: pd.DataFrame) -> Int:
    """``claimed`` in proportion to ``observed_ns``, in whole ns that add up."""
    total = frame.groupby("of")["observed_ns"].cumsum().to_numpy(np.int64)
    whole = frame.groupby("of")["observed_ns"].transform("sum").to_numpy(np.int64)
    claimed = frame["claimed"].to_numpy(np.int64)
    until = np.floor(total / np.maximum(whole, 1) * claimed).astype(np.int64)
    until = np.where(total == whole, claimed, until)
    first = (frame.groupby("of").cumcount() == 0).to_numpy()
    return until - np.where(first, 0, np.append(0, until[:-1]))


def _table(frame: pd.DataFrame) -> pa.Table:
    names = schema.TABLES["hol"].names()
    text = dict.fromkeys(("side", "category", "subject", "callers"), "category")
    return schema.conform("hol", pa.Table.from_pandas(frame[names].astype(text), preserve_index=False))
