# SPDX-License-Identifier: GPL-2.0-only
"""Packets that the kernel dropped: why, and which messages were delayed by it.

The numbers of the reasons (enum skb_drop_reason) differ between kernels; the recording has their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from .capture.perf_data import CODE, Decoded
from .tables import schema
from .tables.data_frames import column
from .tables.messages import Messages

#: Texts for the most common reasons.
MEANING = {
    "SOCKET_RCVBUFF": "the socket's receive buffer was full",
    "SOCKET_BACKLOG": "the socket's backlog was full while its program held the socket",
    "PROTO_MEM": "the protocol's memory was used up",
    "TCP_ZEROWINDOW": "the receive window was closed",
    "TCP_OVERWINDOW": "it lay beyond the receive window",
    "TCP_LISTEN_OVERFLOW": "the accept queue was full",
    "NO_SOCKET": "no socket had that port",
    "NETFILTER_DROP": "a firewall rule said so",
    "SOCKET_FILTER": "a filter of the socket said so",
    "QDISC_DROP": "the queue of the queueing discipline was full, or it drops by design",
    "QDISC_OVERLIMIT": "the queue of the queueing discipline was full",
    "CPU_BACKLOG": "the core's input queue was full (net.core.netdev_max_backlog)",
    "FULL_RING": "the ring of a device was full",
    "NOMEM": "no memory",
}

#: Columns that messages and dropped packets have in common.
_PORTS = ["proto", "rport", "lport"]


def table(decoded: Decoded, names: Mapping[str, str]) -> pa.Table:
    """Table ``drops``; ``names``: names of the reasons by number, as text."""
    events = decoded.events[decoded.events["kind"] == CODE["net_drop"]]
    packed = events["a"].astype(np.uint64)
    reason, words = pd.factorize(packed.astype(np.int64) & 0xFFFF)
    text = [names.get(str(n), f"reason {n}") for n in words.tolist()]
    columns = {
        "ts_ns": events["ts"].astype(np.int64),
        "cpu": events["cpu"].astype(np.int32),
        "reason": pa.array(np.array([*text, ""], object)[reason], pa.string()),
        "proto": _bits(packed, 16, 8),
        "sport": _bits(packed, 32, 16),
        "dport": _bits(packed, 48, 16),
        "nbytes": events["c"],
    }
    return schema.conform("drops", pa.table(columns))


def _bits(packed: npt.NDArray[np.uint64], low: int, n: int) -> npt.NDArray[np.int32]:
    return (packed >> np.uint64(low) & np.uint64((1 << n) - 1)).astype(np.int32)


def reasons(
    messages: pd.DataFrame, drops: pd.DataFrame, every: Messages
) -> tuple[npt.NDArray[np.object_], int]:
    """Why this machine dropped an earlier copy of each retransmitted message; '' where no drop is known.

    This is the last packet with the message's ports that was dropped between its first and its last arrival. Drops have no
    addresses: if connections of several peers, addresses or namespaces in ``every`` have these ports, the drop may belong to
    another one. Such a message has no reason; the second result is the number of such messages.
    """
    found = np.full(len(messages), "", object)
    again = np.flatnonzero(messages["copy_lost"].fillna(False).to_numpy(bool))
    if not len(again) or not len(drops):
        return found, 0
    wanted = messages.iloc[again][[*_PORTS, "first_ns", "arrival_last_ns"]].assign(row=again)
    wanted = wanted.dropna().astype("int64").sort_values("arrival_last_ns")
    dropped = drops.rename(columns={"sport": "rport", "dport": "lport"})[[*_PORTS, "ts_ns", "reason"]]
    dropped = dropped.astype(dict.fromkeys([*_PORTS, "ts_ns"], "int64")).sort_values("ts_ns", kind="stable")
    last = pd.merge_asof(wanted, dropped, left_on="arrival_last_ns", right_on="ts_ns", by=_PORTS)
    last = last[(last["ts_ns"] >= last["first_ns"]).fillna(False).to_numpy(bool)]
    if not len(last):
        return found, 0
    clear = ~np.isin(_flow(last), _of_several(every, np.unique(_flow(last))))
    found[last["row"].to_numpy()[clear]] = last["reason"].astype(str).to_numpy(object)[clear]
    return found, int(np.count_nonzero(~clear))


def _of_several(every: Messages, flows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The ``flows`` that are shared by connections between different endpoints."""
    ends = ["netns", "laddr", "raddr"]
    rows = every.columns([*_PORTS, *ends], lambda some: np.isin(_flow(some), flows))
    different = rows.drop_duplicates([*_PORTS, *ends])
    flow, n = np.unique(_flow(different), return_counts=True)
    return flow[n > 1]


def _flow(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Protocol and both ports as one number."""
    return _port(rows["proto"], rows["lport"]) << 16 | column(rows["rport"])


def of_messages(drops: pd.DataFrame, messages: pd.DataFrame) -> pd.DataFrame:
    """Dropped packets to or from ports of ``messages``, most common first: direction (to, from), port, proto, reason, n_packets."""
    served = np.unique(_port(messages["proto"], messages["lport"]))
    ends = [drops.assign(direction=way, port=drops[end]) for way, end in (("to", "dport"), ("from", "sport"))]
    every = pd.concat(ends, ignore_index=True)
    every = every[np.isin(_port(every["proto"], every["port"]), served)].astype({"reason": str})
    counts: Any = every.groupby(["direction", "port", "proto", "reason"]).size()
    frame = counts.rename("n_packets").reset_index()
    return frame.sort_values(["n_packets", "reason", "direction"], ascending=[False, True, True]).reset_index(
        drop=True
    )


def _port(proto: pd.Series[Any], port: pd.Series[Any]) -> npt.NDArray[np.int64]:
    """Protocol and port as one number."""
    return column(proto) << 16 | column(port)
