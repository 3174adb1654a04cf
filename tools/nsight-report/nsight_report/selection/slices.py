# SPDX-License-Identifier: GPL-2.0-only
"""Which messages: a part of the latency distribution, a time span, a connection, a request type, or messages by number."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import NsightError

_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_PERCENTILES = re.compile(r"^p(?P<lo>\d+(?:\.\d+)?)-(?P<hi>\d+(?:\.\d+)?)$")
_NS = r"(?P<lo>\d+(?:\.\d+)?)(?P<lou>ns|us|ms|s)-(?:(?P<hi>\d+(?:\.\d+)?)(?P<hiu>ns|us|ms|s))?"
_LATENCIES = re.compile(f"^{_NS}$")
_TIMES = re.compile(f"^time:{_NS}$")
_WORDS = re.compile(r"^(?P<by>conn|peer|type|id):(?P<words>[^+]+)$")

#: Maximum size of a file with numbers of messages.
_MOST_BYTES = 16 << 20

FORMS = (
    "p99-100 (percentiles), 1ms- or 20us-2ms (latencies), time:1.5s-2s (since the first message), conn:4, "
    "peer:10.0.0.2:41000, type:get, id:17,18 or id:@FILE; joined by +"
)


class BadSlice(NsightError):
    """A slice that cannot be parsed."""

    exit_code = 2


@dataclass(frozen=True)
class Condition:
    """One condition on messages.

    ``low`` and ``high``, both included, are percentiles (0..100) when ``by`` is ``percentile`` and nanoseconds when it
    is ``latency`` or ``time``; else ``words`` lists the allowed connections, peers, types or numbers.
    """

    by: str
    low: float = 0
    high: float = 0
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.by == "percentile":
            return f"p{self.low:.12g}-{self.high:.12g}"
        if self.by in ("latency", "time"):
            high = "" if self.high == float("inf") else _ns(self.high)
            return ("time:" if self.by == "time" else "") + f"{_ns(self.low)}-{high}"
        return f"{self.by}:{','.join(self.words)}"


@dataclass(frozen=True)
class Slice:
    """Messages that meet every condition. Percentiles refer to the messages that meet the other conditions."""

    conditions: tuple[Condition, ...]

    @staticmethod
    def parse(text: str) -> Slice:
        """Read ``p99-100``, ``1ms-``, ``time:0s-2s``, ``type:get+p99-100``, ...

        >>> str(Slice.parse("type:get+p99-100"))
        'type:get+p99-100'
        >>> Slice.parse("20us-2ms").conditions[0].high
        2000000.0
        """
        return Slice(tuple(_condition(part, text) for part in text.split("+")))

    def __str__(self) -> str:
        return "+".join(map(str, self.conditions))

    def columns(self) -> list[str]:
        """Columns of messages that decide which rows meet it."""
        return ["latency_ns", *(name for c in self.conditions for name in _COLUMNS.get(c.by, ()))]

    def rows(self, messages: pd.DataFrame, origin_ns: int) -> npt.NDArray[np.int64]:
        """Positions in ``messages`` (``columns``, of one application); times count from ``origin_ns``."""
        chosen = np.ones(len(messages), bool)
        for condition in self.conditions:
            if condition.by == "time":
                chosen &= _between(messages["first_ns"].to_numpy(np.int64) - origin_ns, condition)
            elif condition.by != "percentile":
                chosen &= _MEETS[condition.by](messages, condition)
        found = np.flatnonzero(chosen)
        if not any(condition.by == "percentile" for condition in self.conditions):
            return found
        latency = messages["latency_ns"].to_numpy(np.int64)[found]
        # By rank, so that equal latencies do not make a slice larger than requested.
        rank = np.empty(len(found), np.int64)
        rank[np.argsort(latency, kind="stable")] = np.arange(len(found))
        keep = np.ones(len(found), bool)
        for condition in self.conditions:
            if condition.by == "percentile":
                low = int(np.floor(len(found) * condition.low / 100))
                high = int(np.ceil(len(found) * condition.high / 100))
                if condition.high == 100:
                    low = min(low, len(found) - 1)
                keep &= (rank >= low) & (rank < high)
        return found[keep]


def _condition(part: str, text: str) -> Condition:
    if m := _PERCENTILES.match(part):
        low, high = float(m["lo"]), float(m["hi"])
        if low < high <= 100:
            return Condition("percentile", low, high)
    elif m := _LATENCIES.match(part) or _TIMES.match(part):
        low = float(m["lo"]) * _UNITS[m["lou"]]
        high = float(m["hi"]) * _UNITS[m["hiu"]] if m["hi"] else float("inf")
        if low < high:
            return Condition("time" if part.startswith("time:") else "latency", low, high)
    elif m := _WORDS.match(part):
        words = _listed(m["words"], text) if m["by"] == "id" else tuple(m["words"].split(","))
        if m["by"] not in ("conn", "id") or all(w.isdecimal() and len(w) < 19 for w in words):
            return Condition(m["by"], words=words)
    raise BadSlice(f"slice {text!r} is not understood", f"use {FORMS}")


def _listed(words: str, text: str) -> tuple[str, ...]:
    """Numbers, or those in a file, separated by white space or commas."""
    if not words.startswith("@"):
        return tuple(words.split(","))
    try:
        with Path(words[1:]).open(encoding="utf-8") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise BadSlice(f"slice {text!r}: {words[1:]}: {reason}", "one message ID a line") from None
    if len(content) > _MOST_BYTES:
        raise BadSlice(
            f"slice {text!r}: {words[1:]}: more than {_MOST_BYTES >> 20} MiB", "choose by latency or time"
        )
    numbers = tuple(content.replace(",", " ").split())
    if not numbers:
        raise BadSlice(f"slice {text!r}: {words[1:]}: no number in it", "one message ID a line")
    return numbers


def _between(values: npt.NDArray[np.int64], condition: Condition) -> npt.NDArray[np.bool_]:
    return np.asarray((values >= condition.low) & (values <= condition.high))


def _peer(messages: pd.DataFrame, condition: Condition) -> npt.NDArray[np.bool_]:
    # Computed once per peer: there are far fewer peers than messages.
    address = messages["raddr"].astype("category").cat
    key = address.codes.to_numpy(np.int64) << 32 | messages["rport"].to_numpy(np.int64)
    peers, peer = np.unique(key, return_inverse=True)
    words = [str(address.categories[n]) for n in peers >> 32]
    ports = (peers & 0xFFFFFFFF).tolist()
    meets = [
        word in condition.words or f"{word}:{port}" in condition.words
        for word, port in zip(words, ports, strict=True)
    ]
    return np.array(meets, bool)[peer.reshape(-1)]


def _number(name: str) -> Callable[[pd.DataFrame, Condition], npt.NDArray[np.bool_]]:
    def meets(messages: pd.DataFrame, condition: Condition) -> npt.NDArray[np.bool_]:
        return np.isin(messages[name].to_numpy(np.int64), [int(w) for w in condition.words])

    return meets


def _type(messages: pd.DataFrame, condition: Condition) -> npt.NDArray[np.bool_]:
    return messages["request_type"].isin(condition.words).to_numpy(bool)


def _latency(messages: pd.DataFrame, condition: Condition) -> npt.NDArray[np.bool_]:
    return _between(messages["latency_ns"].to_numpy(np.int64), condition)


_MEETS: dict[str, Callable[[pd.DataFrame, Condition], Any]] = {
    "latency": _latency,
    "conn": _number("conn_id"),
    "id": _number("message_id"),
    "peer": _peer,
    "type": _type,
}
#: Columns that conditions use besides the latency.
_COLUMNS = {
    "time": ("first_ns",),
    "conn": ("conn_id",),
    "id": ("message_id",),
    "peer": ("raddr", "rport"),
    "type": ("request_type",),
}


def _ns(value: float) -> str:
    for unit in ("s", "ms", "us"):
        if value >= _UNITS[unit]:
            return f"{value / _UNITS[unit]:.12g}{unit}"
    return f"{value:.12g}ns"
