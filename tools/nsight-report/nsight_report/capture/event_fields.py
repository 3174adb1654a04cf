# SPDX-License-Identifier: GPL-2.0-only
"""The meaning of the 24 fields of an event: addresses, names, and which values are possible."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from .. import schema
from ..losses import Ledger

Columns = dict[str, Any]
I64 = npt.NDArray[np.int64]

MAX_CPU = 1 << 16
MAX_LEN = 1 << 31  # the kernel returns at most INT_MAX
ROW_SPACING_NS = 10_000_000_000  # more disorder than any ring buffer of the probes can cause
AF_INET, AF_INET6 = 2, 10
_KNOWN = {"kind": "kind", "ts": "ts_ns", "call_ts": "call_ns", "hwstamp": "hw_stamp", "swstamp": "sw_stamp"}
_V4_MAPPED = 0xFFFF0000  # bytes 8-11 of ::ffff:a.b.c.d as loaded


def decode(table: pa.Table, ledger: Ledger) -> Columns:
    """Numpy columns named as in ``schema.EVENTS`` from the raw fields, impossible events left out.

    Text columns (kind, comm, laddr, raddr) are ``pandas.Categorical``, which slice like the others.
    """
    raw = {
        name: table[name].to_numpy() for name in table.column_names if pa.types.is_integer(table[name].type)
    }
    good = _possible(raw, ledger)
    n_rows = len(good)
    hexes = {
        name: _hex(table[name])
        for name in ("comm0", "comm1", "sk", "laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo")
    }
    columns: Columns = {}
    columns["kind"] = _categorical(table["kind"])
    for name in ("ts", "call_ts", "hwstamp", "swstamp"):
        columns[_KNOWN[name]] = raw[name]
    for name in ("cpu", "pid", "tid", "fd", "proto", "lport", "rport"):
        columns[name] = np.where(good, raw[name], 0).astype(np.int32)
    columns["netns"] = np.where(good, raw["netns"], 0).astype(np.uint32)
    columns["seq"], columns["len"], columns["sk"] = raw["seq"], raw["len"], hexes["sk"]
    columns["comm"] = _pairs(hexes["comm0"], hexes["comm1"], np.zeros(n_rows, np.int64), _comm)
    local_v4 = _is_v4(raw["family"], hexes["laddr_hi"], hexes["laddr_lo"])
    remote_v4 = _is_v4(raw["family"], hexes["raddr_hi"], hexes["raddr_lo"])
    # A dual-stack socket without a peer has the any-address on one side and may be mapped on the other.
    columns["family"] = np.where(local_v4 | remote_v4, AF_INET, AF_INET6).astype(np.int32)
    columns["laddr"] = _pairs(hexes["laddr_hi"], hexes["laddr_lo"], local_v4.astype(np.int64), _address)
    columns["raddr"] = _pairs(hexes["raddr_hi"], hexes["raddr_lo"], remote_v4.astype(np.int64), _address)
    packet = np.isin(np.asarray(columns["kind"].codes), _codes(columns["kind"], "AX"))
    columns["ifindex"] = np.where(good & packet, raw["aux"] >> 8, 0).astype(np.int32)
    columns["flags"] = np.where(packet, raw["aux"] & 0xFF, raw["aux"])
    kind_codes = np.asarray(columns["kind"].codes)
    carries_length = np.isin(kind_codes, _codes(columns["kind"], "AXRST"))
    columns["len"] = np.where(carries_length, raw["len"], 0)
    good &= _in_order(raw["ts"], raw["cpu"], good, ledger)
    return {name: values[good] for name, values in columns.items()}


def events_table(columns: Columns) -> pa.Table:
    """The columns of ``decode`` as a table that conforms to ``schema.EVENTS``."""
    arrays = {}
    for column in schema.EVENTS.columns:
        values = columns[column.name]
        if isinstance(values, pd.Categorical):
            arrays[column.name] = pa.DictionaryArray.from_arrays(
                pa.array(values.codes, pa.int32()), pa.array(list(values.categories), pa.string())
            )
        elif column.name == "call_ns":
            arrays[column.name] = pa.array(values, mask=values == 0)
        else:
            arrays[column.name] = pa.array(values)
    return schema.conform("events", pa.table(arrays))


def _possible(raw: Columns, ledger: Ledger) -> npt.NDArray[np.bool_]:
    """Which rows hold values that a probe can have printed; reasons are counted, first reason only."""
    good = np.ones(len(raw["ts"]), dtype=bool)
    tests = {
        "impossible time": (raw["ts"] <= 0)
        | (raw["ts"] >= 1 << 62)
        | (raw["call_ts"] < 0)
        | (raw["call_ts"] > raw["ts"]),
        "impossible core": (raw["cpu"] < 0) | (raw["cpu"] >= MAX_CPU),
        "impossible process or thread": (raw["pid"] < 0)
        | (raw["tid"] < 0)
        | (np.maximum(raw["pid"], raw["tid"]) >= 1 << 31),
        "impossible sequence number": (raw["seq"] < 0) | (raw["seq"] >= 1 << 32),
        "impossible length": (np.abs(raw["len"]) >= MAX_LEN),
        "unknown protocol or address family": ~np.isin(raw["proto"], (6, 17))
        | ~np.isin(raw["family"], (AF_INET, AF_INET6)),
        "impossible port": (np.minimum(raw["lport"], raw["rport"]) < 0)
        | (np.maximum(raw["lport"], raw["rport"]) >= 1 << 16),
        "impossible descriptor, namespace or stamp": (np.abs(raw["fd"]) >= 1 << 31)
        | (raw["netns"] < 0)
        | (raw["netns"] >= 1 << 32)
        | (raw["hwstamp"] < 0)
        | (raw["swstamp"] < 0)
        | (raw["aux"] < 0)
        | (raw["aux"] >= 1 << 39),
    }
    for reason, bad in tests.items():
        ledger.add(
            f"events with {reason}",
            int(np.count_nonzero(bad & good)),
            "warning",
            "they were rejected",
            "the file is damaged or was not written by the probes",
        )
        good &= ~bad
    return good


def _in_order(ts: I64, cpu: I64, good: npt.NDArray[np.bool_], ledger: Ledger) -> npt.NDArray[np.bool_]:
    """Which events are not far out of the order in which their core wrote them.

    The events of one core stand in the file in the order they happened. An event is rejected
    when it is more than 10 s before what precedes it or after what follows it. Its neighbours are
    taken as medians of five, so that one absurd stamp does not condemn the events around it.
    """
    keep = np.ones(len(ts), dtype=bool)
    rows = np.flatnonzero(good)
    rows = rows[np.argsort(cpu[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(cpu[rows])) + 1
    for part in np.split(rows, bounds):
        times = ts[part]
        padded = np.concatenate((np.repeat(times[:1], 2), times, np.repeat(times[-1:], 2)))
        if len(part) < 5:
            continue  # too few to say which one is wrong
        medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1).astype(np.int64)
        before = np.concatenate((np.repeat(medians[:1], 3), medians[:-3]))
        after = np.concatenate((medians[3:], np.repeat(medians[-1:], 3)))
        keep[part] = (times >= before - ROW_SPACING_NS) & (times <= after + ROW_SPACING_NS)
    ledger.add(
        "events far out of order",
        int(np.count_nonzero(~keep & good)),
        "warning",
        "their time is more than 10 s away from their neighbours'; they were rejected",
        "the file is damaged or holds two recordings",
    )
    return keep


def _hex(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """A dictionary column of hexadecimal numbers as numbers."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    values = np.fromiter((int(text, 16) for text in array.dictionary.to_pylist()), np.uint64)
    codes = array.indices.to_numpy(zero_copy_only=False)
    return values[codes] if len(codes) else np.zeros(0, np.uint64)


def _categorical(column: pa.ChunkedArray) -> pd.Categorical:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    codes = array.indices.to_numpy(zero_copy_only=False)
    return pd.Categorical.from_codes(codes, array.dictionary.to_pylist())


def _codes(kind: pd.Categorical, letters: str) -> list[int]:
    return [i for i, value in enumerate(kind.categories) if value in letters]


def _pairs(
    high: npt.NDArray[np.uint64],
    low: npt.NDArray[np.uint64],
    mark: I64,
    text: Callable[[int, int, int], str],
) -> pd.Categorical:
    """Categorical of ``text(high, low, mark)``, computed once for every distinct combination."""
    high_codes, highs = pd.factorize(high)
    low_codes, lows = pd.factorize(low)
    n_low = max(1, len(lows))
    combined, distinct = pd.factorize((high_codes.astype(np.int64) * n_low + low_codes) * 2 + mark)
    names: dict[str, int] = {}
    index = np.empty(len(distinct), np.int32)
    for i, key in enumerate(distinct.tolist()):
        pair, flag = divmod(key, 2)
        name = text(int(highs[pair // n_low]), int(lows[pair % n_low]), flag)
        index[i] = names.setdefault(name, len(names))
    codes = index[combined] if len(combined) else np.zeros(0, np.int32)
    return pd.Categorical.from_codes(codes, pd.Index(list(names), dtype=object))


def _is_v4(family: I64, high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    mapped = (high == 0) & ((low & np.uint64(0xFFFFFFFF)) == np.uint64(_V4_MAPPED))
    return np.asarray((family == AF_INET) | mapped)


def _address(high: int, low: int, is_v4: int) -> str:
    """Text of an address from the two words as a little-endian machine loaded them."""
    if is_v4:
        word = low & 0xFFFFFFFF
        if word == _V4_MAPPED:
            word = low >> 32  # in ::ffff:a.b.c.d the address is the upper half
        return str(ipaddress.IPv4Address(struct.pack("<I", word)))
    return str(ipaddress.IPv6Address(struct.pack("<QQ", high, low)))


def _comm(high: int, low: int, _mark: int) -> str:
    """Name of a thread; anything that is not printable is escaped, since names are chosen by programs."""
    name = struct.pack("<QQ", high, low).split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
