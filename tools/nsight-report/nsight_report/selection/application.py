# SPDX-License-Identifier: GPL-2.0-only
"""The application whose messages are diagnosed: the one that was asked for, or the one that serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..errors import BadInput
from ..interval_joins import Int
from ..stage import REQUEST
from ..tables.messages import Messages
from .options import Selection

_OF_APP = ("message_id", "direction", "lport", "rport", "pid", "comm")


class App(NamedTuple):
    """Messages of one application: their numbers, ascending, the connection of each, which threads and processes they had.

    ``ids`` are of one direction, and of one port if it was asked for; what ``pids`` received is the application's all the same.
    """

    ids: Int
    conn: Int
    tids: Int
    pids: Int

    @staticmethod
    def of(messages: pd.DataFrame) -> App:
        """By rows in the table's order: message_id, conn_id, tid, pid; of requests send_tid, too."""
        ids, conn, tid, pid = (
            messages[c].to_numpy(np.int64) for c in ("message_id", "conn_id", "tid", "pid")
        )
        threads = [tid, messages["send_tid"].to_numpy(np.int64)] if "send_tid" in messages else [tid]
        return App(ids, conn, np.unique(np.concatenate(threads)), np.unique(pid[pid >= 0]))


def choose_app(messages: Messages, options: Selection) -> Int:
    """Numbers of the messages of one application (process) in one direction.

    Without ``options.app`` and ``options.port``: of all processes the one that serves, that is
    the one whose own port more peers talk to than it talks to itself; ties by message count.
    """
    every = messages.columns(_OF_APP)
    if options.direction == REQUEST and not len(every):
        raise BadInput(
            "no request was joined to its reply",
            "record both directions (without --rx and --tx); --role client is about requests that the process sent",
        )
    chosen = (every["direction"] == options.direction).to_numpy(bool)
    if options.port is not None:
        chosen = chosen & (every["lport"] == options.port).to_numpy(bool)
    if options.app is not None:
        by_pid = options.app.isdigit()
        of = every["pid"] == int(options.app) if by_pid else every["comm"] == options.app
        chosen = chosen & of.to_numpy(bool)
    if not chosen.any():
        raise BadInput(
            "no complete message matches the selection",
            "see the losses, and which applications, ports and directions the capture has: "
            + (", ".join(_apps(every)) or "none"),
        )
    if options.app is None:
        # One listening port serves many peer ports; a client uses many own ports for one peer port.
        groups = (
            every.loc[chosen, ["pid", "lport", "rport"]]
            .groupby("pid")
            .agg(
                n=("pid", "size"), own=("lport", "nunique"), peers=("rport", "nunique"), low=("lport", "min")
            )
        )
        groups["serves"] = groups["own"] <= groups["peers"]
        groups = groups.sort_values(["serves", "n", "low"], ascending=[False, False, True])
        best = groups.iloc[0]
        same = groups[(groups["serves"] == best["serves"]) & (groups["low"] == best["low"])]
        # Worker processes of one server (nginx) listen on one port: they are one application.
        chosen = chosen & np.isin(every["pid"].to_numpy(), same.index.to_numpy())
    return every["message_id"].to_numpy()[chosen]


def of_app(messages: Messages, options: Selection, names: Sequence[str]) -> pd.DataFrame:
    """Some columns (as ``Messages.columns`` has them) of the messages of the application that ``choose_app`` chooses."""
    ids = choose_app(messages, options)
    return messages.columns(["message_id", *names], lambda rows: np.isin(rows["message_id"].to_numpy(), ids))


def _apps(messages: pd.DataFrame) -> list[str]:
    if messages.empty:
        return []
    counts = messages.groupby(["comm", "pid", "lport", "direction"], observed=True).size()
    top = counts.sort_values(ascending=False).head(5)
    rows = top.rename("n").reset_index()
    return [f"{r.comm}[{r.pid}] port {r.lport} {r.direction} ({r.n})" for r in rows.itertuples()]  # five
