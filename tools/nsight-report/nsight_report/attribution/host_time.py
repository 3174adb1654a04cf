# SPDX-License-Identifier: GPL-2.0-only
"""How much of a message's lifetime the host may have had its cores, where the place of steal time is unknown."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..interval_joins import overlaps
from ..tables.data_frames import column

#: Columns of a message's cores.
CORES = ("recv_cpu", "handoff_cpu", "app_cpu")


def at_most(messages: pd.DataFrame, stolen: pd.DataFrame) -> pd.Series:
    """ns of each message, by ``message_id``: of each time in which the host had one of the message's cores for ``ns`` (table ``stolen``), no
    more than lies in the lifetime, and no more than ``ns``. An upper bound: the message need not have been on that core then.

    >>> messages = pd.DataFrame({"message_id": [7, 8], "first_ns": [0, 50], "last_ns": [40, 90], "app_cpu": [1, 1]})
    >>> at_most(messages, pd.DataFrame({"cpu": [1], "start_ns": [30], "end_ns": [80], "ns": [20]})).tolist()
    [10, 20]
    """
    first, last = (column(messages[c]) for c in ("first_ns", "last_ns"))
    at = np.arange(len(messages))
    # A core counts once, whatever the message did there.
    cores = [pd.DataFrame({"at": at, "cpu": column(messages[c])}) for c in CORES if c in messages]
    pairs = pd.concat(cores).drop_duplicates()
    pairs = pairs[pairs["cpu"] >= 0]
    row, core = column(pairs["at"]), column(pairs["cpu"])
    group, start, end, ns = (column(stolen[c]) for c in ("cpu", "start_ns", "end_ns", "ns"))
    query, which, low, high = overlaps(core, first[row], last[row], group, start, end)
    sums = np.zeros(len(messages), np.int64)
    np.add.at(sums, row[query], np.minimum(high - low, ns[which]))
    return pd.Series(sums, index=column(messages["message_id"]))
