# SPDX-License-Identifier: GPL-2.0-only
"""What a wait was for, from what the thread was in and from the context of the core that woke it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..calls.memory_work import MEASURED as MEASURED_WORK
from ..calls.memory_work import PAGE_FAULT
from .words import Words, alike

#: How each is known: from the records themselves; from their order or from names; not at all.
MEASURED, INFERRED, MISSING = SURE = ("measured", "inferred", "missing")

LOCKS = frozenset(["futex", "futex_wait", "futex_waitv", "semop", "semtimedop", "flock"])
SLEEPS = frozenset(["nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend", "rt_sigtimedwait"])
CHILDREN = frozenset(["wait4", "waitid", "vfork"])
SOCKETS = frozenset(
    ["recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "accept", "accept4", "connect", "sendfile"]
)  # fmt: skip
FILES = frozenset(
    [
        "read", "readv", "write", "writev", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait",
        "epoll_pwait2", "io_uring_enter", "io_getevents", "splice", "tee", "vmsplice",
    ]
)  # fmt: skip
TIMERS = frozenset(["local_timer", "timer", "hrtimer", "TIMER", "HRTIMER", "arch_timer"])
_OF_OTHER_CORES = frozenset(["reschedule", "call_function", "call_function_single"])
MEMORY = frozenset(MEASURED_WORK)


class Verdict(NamedTuple):
    """``kind``: one of the kinds of table ``wait_pieces``; ``sure``; ``by_thread``: a thread woke it, and what that did explains it."""

    kind: str
    sure: str
    by_thread: bool


def kind_of(
    state: str, place: str, context: str, symbol: str, from_thread: bool, has_io: bool, reclaims: bool
) -> Verdict:
    """The kind of one wait. ``has_io``: block I/O completed right before; ``reclaims``: kswapd woke it.

    >>> kind_of("sleeping", "futex", "thread", "worker", False, False, False)
    Verdict(kind='lock', sure='measured', by_thread=True)
    >>> kind_of("blocked", "fsync", "softirq", "BLOCK", False, True, False)
    Verdict(kind='disk', sure='measured', by_thread=False)
    """
    if context in ("thread", "syscall"):
        return _by_thread(state, place, reclaims)
    if context in ("softirq", "hardirq"):
        return _by_interrupt(place, symbol, from_thread, has_io)
    # An idle core wakes nobody: an interrupt did, which was not recorded.
    return Verdict("unknown", MISSING, False)


def _by_thread(state: str, place: str, reclaims: bool) -> Verdict:
    if reclaims:
        return Verdict("reclaim", INFERRED, True)
    if state == "stopped":
        return Verdict("stopped", MEASURED, True)
    for kind, places in (
        ("lock", LOCKS),
        ("signal", SLEEPS),
        ("child", CHILDREN),
        (PAGE_FAULT, {PAGE_FAULT}),
        ("reclaim", MEMORY),
    ):
        if place in places:
            return Verdict(kind, MEASURED, True)
    if state == "blocked":
        return Verdict("kernel", MEASURED, True)
    if place in SOCKETS:
        return Verdict("socket", MEASURED, True)
    return Verdict("hand-over", MEASURED if place in FILES else INFERRED, True)


def _by_interrupt(place: str, symbol: str, from_thread: bool, has_io: bool) -> Verdict:
    if has_io:
        return Verdict("disk", MEASURED, False)
    if symbol in ("BLOCK", "IRQ_POLL"):
        return Verdict("disk", INFERRED, False)
    if place in MEMORY and symbol in TIMERS:
        return Verdict("reclaim", MEASURED, False)  # throttled: it has to wait before it goes on
    if symbol in ("NET_RX", "NET_TX"):
        return Verdict("socket", INFERRED, True) if from_thread else Verdict("packet", MEASURED, False)
    if symbol in TIMERS:
        return Verdict("timer", MEASURED if place in SLEEPS else INFERRED, False)
    if symbol == "RCU":
        return Verdict("kernel", INFERRED, False)
    return Verdict("device", INFERRED if symbol in _OF_OTHER_CORES else MEASURED, False)


def kinds_of(waits: pd.DataFrame, words: Words) -> dict[str, npt.NDArray[Any]]:
    """``kind_of`` for rows of table ``waits``, once per combination: kind and sure as numbers of ``words``, by_thread."""
    told = {name: words.of(waits[name]) for name in ("state", "place", "context", "symbol")}
    # Names of threads make no difference.
    told["symbol"][np.isin(told["context"], words.numbers(["thread", "syscall"]))] = 0
    told["from_thread"] = waits["from_thread"].to_numpy(bool).astype(np.int64)
    told["has_io"] = (waits["device"].to_numpy(np.int64) >= 0).astype(np.int64)
    waker = waits["waker_comm"].astype("category")
    reclaims = np.append(waker.cat.categories.astype(str).str.startswith("kswapd"), False)
    told["reclaims"] = reclaims.astype(np.int64)[waker.cat.codes.to_numpy()]
    key = alike(told.values())
    first = np.unique(key, return_index=True)[1]
    texts = words.texts()

    def said(name: str, row: int) -> str:
        return str(texts[told[name][row]])

    found = [
        kind_of(
            said("state", row),
            said("place", row),
            said("context", row),
            said("symbol", row),
            bool(told["from_thread"][row]),
            bool(told["has_io"][row]),
            bool(told["reclaims"][row]),
        )
        for row in first.tolist()
    ]
    kind, sure = (words.numbers([getattr(f, name) for f in found])[key] for name in ("kind", "sure"))
    return {"kind": kind, "sure": sure, "by_thread": np.array([f.by_thread for f in found], bool)[key]}


def device_names(numbers: npt.NDArray[np.int64], words: Words) -> npt.NDArray[np.int64]:
    """Block devices as ``major:minor``, '' below 0; numbers of ``words``.

    >>> words = Words()
    >>> numbers = device_names(np.array([254 << 20 | 3, -1]), words)
    >>> words.texts()[numbers].tolist()
    ['254:3', '']
    """
    unique, codes = np.unique(numbers, return_inverse=True)
    names = [f"{n >> 20}:{n & 0xFFFFF}" if n >= 0 else "" for n in unique.tolist()]
    return words.numbers(names)[codes]
