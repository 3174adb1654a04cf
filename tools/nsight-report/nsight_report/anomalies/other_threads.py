# SPDX-License-Identifier: GPL-2.0-only
"""What another thread did while it had the core that a message needed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..interval_joins import overlaps
from ..names import ARROW
from ..tables.data_frames import column, to_pandas
from ..timeline.activity import Activity
from ..timeline.labelled import KINDS, SIBLING, THREAD

_KINDS = (KINDS[SIBLING], KINDS[THREAD])
_COLUMNS = ("kind", "symbol", "cpu", "start_ns", "dur_ns", "depth")


def with_functions(frame: pd.DataFrame, activity: Activity) -> pd.DataFrame:
    """Rows of anomalies, where the path of each row of another thread is the functions in which that thread spent more than half of
    the row's longest interval, outermost first; '' if there is none. ``frame``: as of deviations(); calls must be known (Intel PT)."""
    at = np.flatnonzero(frame["kind"].isin(_KINDS) & (frame["path"] == "") & (frame["cpu"] >= 0))
    if not len(at):
        return frame
    cpu, start, end = (column(frame[name])[at] for name in ("cpu", "start_ns", "end_ns"))
    calls = to_pandas(activity.calls_while(cpu, start, end, _COLUMNS))
    calls = calls[calls["kind"] == "function"]
    begin, depth = column(calls["start_ns"]), column(calls["depth"])
    # Only calls of one depth are disjoint: each row asks at every depth.
    levels = np.arange(depth.max(initial=-1) + 1)
    every = np.repeat(np.arange(len(at)), len(levels))
    asked = cpu[every] * len(levels) + np.tile(levels, len(at))
    core = column(calls["cpu"]) * len(levels) + depth
    of, call, low, high = overlaps(
        asked, start[every], end[every], core, begin, begin + column(calls["dur_ns"])
    )
    of = every[of]
    most = 2 * (high - low) > (end - start)[of]
    of, call = of[most], call[most]
    symbol = calls["symbol"].astype(str).to_numpy(object)[call]
    inside = pd.DataFrame({"of": of, "depth": depth[call], "symbol": symbol})
    texts = inside.sort_values(["of", "depth"]).groupby("of")["symbol"].agg(ARROW.join)
    path = frame["path"].to_numpy(object, copy=True)
    path[at[texts.index.to_numpy(np.int64)]] = texts.to_numpy(object)
    return frame.assign(path=path)
