# SPDX-License-Identifier: GPL-2.0-only
"""The meaning of the 24 fields of an event: addresses, names, and which values are possible.

``decode`` takes them as numbers; they come from text (events.tsv) or from binary timestamps (records).
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..losses import Ledger
from ..tables.external_sort import Rows, row_type

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
U64 = npt.NDArray[np.uint64]

MAX_CPU = 1 << 16
MAX_LEN = 1 << 31  # the kernel returns at most INT_MAX
AF_INET, AF_INET6 = 2, 10
#: An event: the columns of table ``events`` (``call_ns`` 0: not known), and its number among the events of the file.
ROW = row_type("events", ("number", "<i8"))
_KNOWN = {"ts_ns": "ts", "call_ns": "call_ts", "hw_timestamp": "hwstamp", "sw_timestamp": "swstamp"}
#: Fields that are hexadecimal in text.
HEX = ("comm0", "comm1", "sk", "laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo")
#: For every event, the number in each of its fields. ``kind`` and ``comm`` are numbers of texts (``Words``); words of
#: addresses and ``sk`` are unsigned.
Numbers = dict[str, npt.NDArray[Any]]
_V4_MAPPED = 0xFFFF0000  # bytes 8-11 of ::ffff:a.b.c.d as loaded


class Words:
    """Texts of the text columns: each has a number, which the rows contain."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, int]] = {"kind": {}, "comm": {}, "laddr": {}, "raddr": {}}

    def of(self, column: str) -> dict[str, int]:
        """The numbers of a column's texts."""
        return self._of[column]

    def numbers(self, column: str, texts: str) -> list[int]:
        """The numbers of those letters in ``texts`` that the column has."""
        return [number for text, number in self._of[column].items() if text in texts]

    def lists(self) -> dict[str, list[str]]:
        """The texts of every column in the order of their numbers."""
        return {column: list(numbers) for column, numbers in self._of.items()}


def decode_text(table: pa.Table, words: Words, first: int, ledger: Ledger) -> Rows:
    """Like ``decode``, from a table of the 24 fields: kinds are letters, names of threads two words."""
    numbers = numbers_of_text(table, HEX)
    numbers["comm"] = names(numbers["comm0"], numbers["comm1"], words)
    numbers["kind"] = letters(table["kind"], words)
    return decode(numbers, words, first, ledger)


def numbers_of_text(table: pa.Table, hexadecimal: Iterable[str]) -> Numbers:
    """The integer columns of a table of fields; some are hexadecimal in text."""
    numbers: Numbers = {
        name: table[name].to_numpy() for name in table.column_names if pa.types.is_integer(table[name].type)
    }
    return numbers | {name: _hex(table[name]) for name in hexadecimal}


def names(low: U64, high: U64, words: Words) -> npt.NDArray[np.int32]:
    """Numbers of threads' names; ``low`` and ``high`` are the two words of a name."""
    return _pairs(low, high, np.zeros(len(low), np.int64), _comm, words.of("comm"))


def letters(column: pa.ChunkedArray, words: Words) -> npt.NDArray[np.int32]:
    """Numbers of the kinds in a dictionary column."""
    return _numbers(column, words.of("kind"))


def decode(numbers: Numbers, words: Words, first: int, ledger: Ledger) -> Rows:
    """Events (``ROW``) from their numbers, without impossible ones; ``first``: the number of the first."""
    n_events = len(numbers["ts"])
    good = np.flatnonzero(_possible(numbers, ledger))
    if len(good) < n_events:
        numbers = {name: values[good] for name, values in numbers.items()}
    rows = np.zeros(len(good), ROW)
    rows["number"] = first + good
    for name in ("kind", "cpu", "pid", "tid", "comm", "fd", "sk", "proto", "lport", "rport", "netns", "seq"):
        rows[name] = numbers[name]
    for name, field in _KNOWN.items():
        rows[name] = numbers[field]
    is_v4 = {}
    for name in ("laddr", "raddr"):
        high, low = numbers[name + "_hi"], numbers[name + "_lo"]
        is_v4[name] = _is_v4(numbers["family"], high, low)
        rows[name] = _pairs(high, low, is_v4[name].astype(np.int64), address_text, words.of(name))
    # A dual-stack socket without a peer has the any-address on one side and may be mapped on the other.
    rows["family"] = np.where(is_v4["laddr"] | is_v4["raddr"], AF_INET, AF_INET6)
    packet = np.isin(rows["kind"], words.numbers("kind", "AX"))
    rows["ifindex"] = np.where(packet, numbers["aux"] >> 8, 0)
    rows["flags"] = np.where(packet, numbers["aux"] & 0xFF, numbers["aux"])
    rows["len"] = np.where(np.isin(rows["kind"], words.numbers("kind", "AXRST")), numbers["len"], 0)
    return rows


def comm_text(name: str) -> str:
    """Name of a thread, with unprintable characters escaped, since programs choose their names."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def _possible(raw: Numbers, ledger: Ledger) -> npt.NDArray[np.bool_]:
    """Which rows hold values that a probe can have printed; reasons are counted, only the first per row."""
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
        "impossible length": _beyond(raw["len"], MAX_LEN),
        "unknown protocol or address family": ~np.isin(raw["proto"], (6, 17))
        | ~np.isin(raw["family"], (AF_INET, AF_INET6)),
        "impossible port": (np.minimum(raw["lport"], raw["rport"]) < 0)
        | (np.maximum(raw["lport"], raw["rport"]) >= 1 << 16),
        "impossible descriptor, namespace or timestamp": _beyond(raw["fd"], 1 << 31)
        | (raw["netns"] < 0)
        | (raw["netns"] >= 1 << 32)
        | (raw["hwstamp"] < 0)
        | (raw["swstamp"] < 0)
        | (raw["aux"] < 0)
        | (raw["aux"] >= 1 << 39),
    }
    for reason, bad in tests.items():
        ledger.add("events_invalid", int(np.count_nonzero(bad & good)), reason=reason)
        good &= ~bad
    return good


def _beyond(values: I64, limit: int) -> npt.NDArray[np.bool_]:
    """Which values are at least ``limit`` away from 0; abs() of the least integer is negative."""
    return np.asarray((values <= -limit) | (values >= limit))


def _hex(column: pa.ChunkedArray) -> U64:
    """A dictionary column of hexadecimal numbers as numbers."""
    codes, texts = _codes(column)
    return np.fromiter((int(text, 16) for text in texts), np.uint64)[codes]


def _numbers(column: pa.ChunkedArray, numbers: dict[str, int]) -> npt.NDArray[np.int32]:
    """Numbers of the texts of a dictionary column; new texts are entered."""
    codes, texts = _codes(column)
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)[codes]


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array.indices.to_numpy(), array.dictionary.to_pylist()


def _pairs(
    high: U64, low: U64, mark: I64, text: Callable[[int, int, int], str], numbers: dict[str, int]
) -> npt.NDArray[np.int32]:
    """Numbers of ``text(high, low, mark)``, computed once for every distinct combination; new ones are entered."""
    high_codes, highs = pd.factorize(high)
    low_codes, lows = pd.factorize(low)
    n_low = max(1, len(lows))
    combined, distinct = pd.factorize((high_codes.astype(np.int64) * n_low + low_codes) * 2 + mark)
    index = np.empty(len(distinct), np.int32)
    for i, key in enumerate(distinct.tolist()):
        pair, flag = divmod(key, 2)
        name = text(int(highs[pair // n_low]), int(lows[pair % n_low]), flag)
        index[i] = numbers.setdefault(name, len(numbers))
    return index[combined]


def _is_v4(family: I64, high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    mapped = (high == 0) & ((low & np.uint64(0xFFFFFFFF)) == np.uint64(_V4_MAPPED))
    return np.asarray((family == AF_INET) | mapped)


def address_text(high: int, low: int, is_v4: int) -> str:
    """Text of an address from the two words as a little-endian machine loaded them."""
    if is_v4:
        word = low & 0xFFFFFFFF
        if word == _V4_MAPPED:
            word = low >> 32  # in ::ffff:a.b.c.d the address is the upper half
        return str(ipaddress.IPv4Address(struct.pack("<I", word)))
    return str(ipaddress.IPv6Address(struct.pack("<QQ", high, low)))


def _comm(high: int, low: int, _mark: int) -> str:
    return comm_text(struct.pack("<QQ", high, low).split(b"\0", 1)[0].decode("utf-8", "backslashreplace"))
