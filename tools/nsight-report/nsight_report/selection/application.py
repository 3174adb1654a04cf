# SPDX-License-Identifier: GPL-2.0-only
"""The application whose messages are diagnosed: the selected one, or the one that acts as server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import BadInput
from ..interval_joins import Int
from ..stage import REQUEST
from ..tables.data_frames import column
from ..tables.messages import Messages
from .options import Selection

_OF_APP = ("message_id", "direction", "lport", "rport", "pid", "comm")
_OF_PROCESS = ["pid", "netns", "lport", "rport"]


class App(NamedTuple):
    """Messages of one application: their numbers, ascending, the connection of each, and their threads and processes.

    ``ids`` are of one direction, and of one port if it was selected; what ``pids`` received counts as the application's in any case.
    """

    ids: Int
    conn: Int
    tids: Int
    pids: Int

    @staticmethod
    def of(messages: pd.DataFrame) -> App:
        """From rows in table order: message_id, conn_id, tid, begin_tid, pid; for requests also send_tid."""
        ids, conn, tid, pid = (
            messages[c].to_numpy(np.int64) for c in ("message_id", "conn_id", "tid", "pid")
        )
        others = [column(messages[name]) for name in ("begin_tid", "send_tid") if name in messages]
        threads = np.unique(np.concatenate([tid, *(other[other > 0] for other in others)]))
        return App(ids, conn, threads, np.unique(pid[pid >= 0]))


def choose_app(messages: Messages, options: Selection) -> Int:
    """Numbers of the messages of one application (process) in one direction.

    Without ``options.app`` and ``options.port``: the process that acts as server, that is
    the one whose own port has more peers than it has peers itself; ties by message count.
    """
    counts: list[pd.DataFrame] = []
    n_rows = 0

    def count(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        nonlocal n_rows
        n_rows += len(rows)
        found = rows.assign(netns=column(rows["netns"])).loc[_asked(rows, options), _OF_PROCESS]
        counts.append(found.value_counts().rename("n").reset_index())
        return np.zeros(len(rows), bool)

    # Some rows at a time: only processes and ports stay in memory.
    messages.columns((*_OF_APP, "netns"), count)
    if options.direction == REQUEST and not n_rows:
        raise BadInput(
            "no request was joined to its reply",
            "record both directions (without --rx and --tx); --role client is about requests that the process sent",
        )
    kinds = pd.concat(counts).groupby(_OF_PROCESS)["n"].sum().reset_index()
    if kinds.empty:
        raise BadInput(
            "no complete message matches the selection",
            "see the losses, and which applications, ports and directions the capture has: "
            + (", ".join(_apps(messages.columns(_OF_APP))) or "none"),
        )
    own = None
    if options.app is None:
        # One listening port serves many peer ports; a client uses many own ports for one peer port.
        groups = kinds.groupby("pid").agg(
            n=("n", "sum"), own=("lport", "nunique"), peers=("rport", "nunique"), low=("lport", "min"),
            netns=("netns", "min"),
        )  # fmt: skip
        groups["serves"] = groups["own"] <= groups["peers"]
        groups = pd.DataFrame(groups).sort_values(["serves", "n", "low"], ascending=[False, False, True])
        best = groups.iloc[0]
        same = groups[(groups[["serves", "low", "netns"]] == best[["serves", "low", "netns"]]).all(axis=1)]
        # Worker processes of one server (nginx) listen on one port: they are one application. In another network
        # namespace (another container) the port belongs to another server.
        own = same.index.to_numpy()

    found: list[Int] = []

    def is_own(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        asked = _asked(rows, options)
        if own is not None:
            asked = asked & np.isin(rows["pid"].to_numpy(), own)
        found.append(rows["message_id"].to_numpy()[asked])
        return np.zeros(len(rows), bool)

    messages.columns(_OF_APP, is_own)
    return np.concatenate(found)


def _asked(messages: pd.DataFrame, options: Selection) -> npt.NDArray[np.bool_]:
    chosen = (messages["direction"] == options.direction).to_numpy(bool)
    if options.port is not None:
        chosen = chosen & (messages["lport"] == options.port).to_numpy(bool)
    if options.app is not None:
        by_pid = options.app.isdecimal() and len(options.app) < 20
        of = messages["pid"] == int(options.app) if by_pid else messages["comm"] == options.app
        chosen = chosen & of.to_numpy(bool)
    return chosen


def of_app(messages: Messages, options: Selection, names: Sequence[str]) -> pd.DataFrame:
    """Some columns (as ``Messages.columns`` returns them) of the messages of the application that ``choose_app`` chooses."""
    ids = choose_app(messages, options)

    def is_of_app(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        numbers = rows["message_id"].to_numpy()  # both ascend
        low, high = np.searchsorted(ids, [numbers[0], numbers[-1] + 1]) if len(numbers) else (0, 0)
        return (
            np.isin(numbers, ids[low:high], assume_unique=True)
            if high - low < len(numbers)
            else np.ones(len(numbers), bool)
        )

    return messages.columns(["message_id", *names], is_of_app)


def _apps(messages: pd.DataFrame) -> list[str]:
    if messages.empty:
        return []
    counts = messages.groupby(["comm", "pid", "lport", "direction"], observed=True).size()
    top = counts.sort_values(ascending=False).head(5)
    rows = top.rename("n").reset_index()
    return [f"{r.comm}[{r.pid}] port {r.lport} {r.direction} ({r.n})" for r in rows.itertuples()]  # five
