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

from .capture.event_fields import address_text
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
_ADDRESSES = ["raddr", "laddr"]
#: What distinguishes connections with the same ports.
_ENDS = ["netns", "laddr", "raddr"]


def table(decoded: Decoded, names: Mapping[str, str]) -> pa.Table:
    """Table ``drops``; ``names``: names of the reasons by number, as text."""
    at = np.flatnonzero(decoded.events["kind"] == CODE["net_drop"])
    events = decoded.events[at]
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
        "saddr": _addresses(decoded.events, at + 1, CODE["net_drop_source"]),
        "daddr": _addresses(decoded.events, at + 2, CODE["net_drop_destination"]),
        "nbytes": events["c"],
    }
    return schema.conform("drops", pa.table(columns))


def _bits(packed: npt.NDArray[np.uint64], low: int, n: int) -> npt.NDArray[np.int32]:
    return (packed >> np.uint64(low) & np.uint64((1 << n) - 1)).astype(np.int32)


def _addresses(events: npt.NDArray[np.void], at: npt.NDArray[np.int64], kind: int) -> pa.Array:
    """Addresses in the events of this kind at ``at``; '' where another event is."""
    if not len(at):
        return pa.array([], pa.string())
    of = events[np.minimum(at, len(events) - 1)]
    known = (of["kind"] == kind) & (at < len(events))
    words = [np.where(known, of[name], 0).view(np.uint64) for name in ("a", "b")]
    code, distinct = pd.MultiIndex.from_arrays([*words, np.where(known, of["c"], -1)]).factorize()
    texts = ["" if v4 < 0 else address_text(int(high), int(low), int(v4)) for high, low, v4 in distinct]
    return pa.array(np.array(texts, object)[code], pa.string())


def reasons(
    messages: pd.DataFrame, drops: pd.DataFrame, every: Messages
) -> tuple[npt.NDArray[np.object_], int]:
    """Why this machine dropped an earlier copy of each retransmitted message; '' where no drop is known.

    This is the last packet with the message's ports and addresses that was dropped between its first and its last arrival. A drop
    without addresses counts by its ports. If connections between other endpoints in ``every`` have the same ones (the same addresses,
    in several namespaces), the drop may belong to another one. Such a message has no reason; the second result is the number of
    such messages.
    """
    found = np.full(len(messages), "", object)
    again = np.flatnonzero(messages["copy_lost"].fillna(False).to_numpy(bool))
    if not len(again) or not len(drops):
        return found, 0
    wanted = messages.iloc[again][[*_PORTS, *_ADDRESSES, "first_ns", "arrival_last_ns"]].assign(row=again)
    numbers = [*_PORTS, "first_ns", "arrival_last_ns"]
    wanted = wanted.dropna().astype(dict.fromkeys(numbers, "int64") | dict.fromkeys(_ADDRESSES, str))
    dropped = drops.rename(columns={"sport": "rport", "dport": "lport", "saddr": "raddr", "daddr": "laddr"})
    dropped = dropped.astype(dict.fromkeys([*_PORTS, "ts_ns"], "int64") | dict.fromkeys(_ADDRESSES, str))
    is_known = (dropped["raddr"] != "").to_numpy()
    last = pd.concat(
        [
            _last(wanted, dropped[is_known], [*_PORTS, *_ADDRESSES], every),
            _last(wanted, dropped[~is_known].drop(columns=_ADDRESSES), _PORTS, every),
        ]
    ).sort_values("ts_ns", kind="stable")
    last = last.drop_duplicates("row", keep="last")
    clear = last["clear"].to_numpy(bool)
    found[last["row"].to_numpy()[clear]] = last["reason"].astype(str).to_numpy(object)[clear]
    return found, int(np.count_nonzero(~clear))


def _last(wanted: pd.DataFrame, dropped: pd.DataFrame, keys: list[str], every: Messages) -> pd.DataFrame:
    """The last drop with the same ``keys`` for each wanted message that has one: row, ts_ns, reason, clear."""
    last = pd.merge_asof(
        wanted.sort_values("arrival_last_ns"),
        dropped[[*keys, "ts_ns", "reason"]].sort_values("ts_ns", kind="stable"),
        left_on="arrival_last_ns",
        right_on="ts_ns",
        by=keys,
    )
    last = last[(last["ts_ns"] >= last["first_ns"]).fillna(False).to_numpy(bool)]
    flows = np.unique(_flow(last))
    rows = every.columns([*_PORTS, *_ENDS], lambda some: np.isin(_flow(some), flows))
    rows = rows.astype(dict.fromkeys(_PORTS, "int64") | dict.fromkeys(_ADDRESSES, str))
    ends = rows.drop_duplicates([*_PORTS, *_ENDS]).groupby(keys).size().rename("n_ends")
    n_ends = last[keys].merge(ends.reset_index(), on=keys, how="left")["n_ends"].fillna(0).to_numpy()
    return last.assign(clear=n_ends <= 1)[["row", "ts_ns", "reason", "clear"]]


def _flow(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Protocol and both ports as one number."""
    return _port(rows["proto"], rows["lport"]) << 16 | column(rows["rport"])


def of_messages(drops: pd.DataFrame, messages: pd.DataFrame) -> pd.DataFrame:
    """Dropped packets to or from ports of ``messages``, most common first.

    Columns: direction (to, from), port, proto, reason, n_packets; n_flows: pairs of endpoints that lost them; most_source and
    most_destination: the endpoints (address, port) that lost most, '' if the recording has no addresses; most_packets: how many.
    """
    served = np.unique(_port(messages["proto"], messages["lport"]))
    ends = [drops.assign(direction=way, port=drops[end]) for way, end in (("to", "dport"), ("from", "sport"))]
    every = pd.concat(ends, ignore_index=True)
    every = every[np.isin(_port(every["proto"], every["port"]), served)].astype(
        {"reason": str, "saddr": str, "daddr": str}
    )
    one = ["direction", "port", "proto", "reason"]
    flows: Any = every.groupby([*one, "saddr", "sport", "daddr", "dport"]).size()
    flows = flows.rename("most_packets").reset_index()
    flows = flows.sort_values("most_packets", ascending=False, kind="stable")
    most: Any = flows.drop_duplicates(one)
    for name, end in (("most_source", "s"), ("most_destination", "d")):
        pairs = zip(most[f"{end}addr"], most[f"{end}port"], strict=True)
        most = most.assign(**{name: [endpoint(address, port) for address, port in pairs]})
    sums = flows.groupby(one)["most_packets"].agg(n_packets="sum", n_flows="size").reset_index()
    frame = sums.merge(most[[*one, "most_source", "most_destination", "most_packets"]], on=one)
    return frame.sort_values(["n_packets", "reason", "direction"], ascending=[False, True, True]).reset_index(
        drop=True
    )


def endpoint(address: str, port: int) -> str:
    """Address and port as text; '' without an address.

    >>> endpoint("10.0.0.1", 80), endpoint("fd00::1", 80), endpoint("", 80)
    ('10.0.0.1:80', '[fd00::1]:80', '')
    """
    if not address:
        return ""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _port(proto: pd.Series[Any], port: pd.Series[Any]) -> npt.NDArray[np.int64]:
    """Protocol and port as one number."""
    return column(proto) << 16 | column(port)
