# SPDX-License-Identifier: GPL-2.0-only
"""Texts for pieces of wait chains, and for how work came to a thread."""

from __future__ import annotations

from typing import NamedTuple

from ..names import thread_name
from .kinds import MEMORY, SLEEPS

_HANDED = {
    "read": "read it",
    "memory": "took it up, awake",
    "queued": "had another request",
    "lock": "woken from a lock",
    "hand-over": "woken by what it waits for (pipe, eventfd, ...)",
    "socket": "woken by a socket",
}
_SURE = {"measured": "", "shared": "of this request or of another one"}


def handed(how: str) -> str:
    """How a thread came to work on a request: column ``how`` of ``request_work``."""
    return _HANDED.get(how, f"woken from {how}")


def certain(sure: str) -> str:
    """The confidence in that; empty if it was measured."""
    return _SURE.get(sure, sure)


class Said(NamedTuple):
    """Columns of ``wait_pieces`` that determine its text."""

    doing: str
    kind: str
    name: str
    other_tid: int
    other_comm: str
    device: str
    operation: str


def phrase(p: Said) -> str:
    """What a thread did, after its name or ``which``.

    >>> phrase(Said("sleeping", "lock", "futex", 12, "worker", "", ""))
    'waited in futex for worker[12] (lock)'
    >>> phrase(Said("blocked", "disk", "fsync", -1, "BLOCK", "254:0", "write"))
    'waited in fsync for disk 254:0 (write)'
    >>> phrase(Said("running", "running", "", -1, "", "", ""))
    'ran'
    """
    if p.doing in ("sleeping", "blocked", "stopped"):
        return _wait(p)
    if p.kind == "running":
        return f"ran in {p.name}" if p.name and p.name != "untraced" else "ran"
    if p.kind == "run queue":
        return f"was ready while {thread_name(p.name)} had its core"
    told = {
        "interrupt": f"was interrupted by {p.name}",
        "steal": "had its core taken away by the host",
        "wake-up": "was ready, and its core was idle",
        "CPU quota": "had used up its CPU quota",
    }
    unknown = {"dead": "had ended", "not recorded": "is not in the recording"}
    return told.get(p.kind) or unknown.get(p.name, "did something that was not recorded")


def _wait(p: Said) -> str:
    place = f" in {p.name}" if p.name else ""
    who = _thread(p)
    if p.kind == "timer":
        return f"slept{place}" if p.name in SLEEPS else f"waited{place} until a timer expired"
    if p.kind == "disk":
        disk = f" {p.device}" if p.device else ""
        return f"waited{place} for disk{disk}" + (f" ({p.operation})" if p.operation else "")
    told = {
        "lock": f"waited{place} for {who} (lock)",
        "hand-over": f"waited{place} for {who} (hand-over)",
        "socket": f"waited{place} for {who} (socket)",
        "page fault": f"waited in a page fault for {who}",
        "child": f"waited{place} for the end of {who}",
        "signal": f"slept{place} until {who} sent a signal",
        "stopped": f"was stopped until {who} let it go on",
        "reclaim": f"waited{place}"
        + ("" if p.other_tid < 0 else f" for {who}")
        + ("" if p.name in MEMORY else " (memory reclaim)"),
        "packet": f"waited{place} for a packet",
        "device": f"waited{place} for interrupt {p.other_comm}",
        "kernel": f"waited{place} for {who} (inside of the kernel)",
    }
    return told.get(p.kind, f"waited{place}, and no record tells for what")


def _thread(p: Said) -> str:
    if p.other_tid < 0:  # for example a grace period
        return p.other_comm or "another thread"
    return f"{p.other_comm or 'thread'}[{p.other_tid}]"
