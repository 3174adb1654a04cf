# SPDX-License-Identifier: GPL-2.0-only
"""When an interrupt announced a message to the receive core, and what the message waited for until then.

Between the NIC and the receive softirq, a packet waits for an interrupt. Until the interrupt comes, the core does not know
of the packet: threads or softirqs that run there would be interrupted, so they do not block it. After the interrupt they do:
if the poll does not follow at once, what runs meanwhile is the cause (a deferred poll). The softirq in which the message
arrived shows which interrupt it was: the one directly before it, or an earlier one of the same source.

Not every interrupt before the softirq announced the packet. While ksoftirqd is ready to run, packets are left for it, and any
interrupt's exit processes some of them: a timer does not mean that the poll was deferred. A packet that another core of this host
sent or steered here (veth, receive packet steering) has no NIC whose interrupt could come or be coalesced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int
from ..selection.windows import MARGIN_NS
from ..tables.data_frames import column
from .incoming import are_received

#: An interrupt that ends this shortly before a softirq raised it: only the interrupt's exit lies between the two.
ADJACENT_NS = 2_000
#: Settings and latencies are nominal: a wait fits if it is at most this many times as long.
FITS = 1.5
#: Time to start running after any interrupt.
ENTRY_NS = 2_000

#: Interrupts of the kernel's own timers. A poll after one of these was deferred (napi_defer_hard_irqs, gro_flush_timeout).
TIMERS = ("local_timer", "asm_sysvec_apic_timer_interrupt")
#: Interrupts of another core.
INTER_PROCESSOR = (
    "irq_work",
    "asm_sysvec_irq_work",
    "reschedule",
    "asm_sysvec_reschedule_ipi",
    "call_function",
    "call_function_single",
    "asm_sysvec_call_function",
    "asm_sysvec_call_function_single",
)
#: Interrupts that say nothing about a NIC.
INTERNAL = (*TIMERS, *INTER_PROCESSOR)

#: Subjects of the time before the interrupt, in the order of ``Told.why``.
SUBJECTS = ("interrupt delivery delay", "interrupt coalescing", "C-state exit latency")
LATE, COALESCED, ASLEEP = range(len(SUBJECTS))


@dataclass(frozen=True)
class Host:
    """Delays that the settings of the recorded machine can cause.

    ``coalesce_ns``: the longest time that NICs may defer an interrupt; -1: they adapt it to the load. ``exit_ns``: for
    each C-state, how long a core needs to leave it. ``throttled``: processes whose CPU quota ran out.
    """

    coalesce_ns: int = 0
    exit_ns: tuple[int, ...] = field(default=())
    throttled: tuple[int, ...] = field(default=())


def longest_wakeup_ns(host: Host) -> int:
    """How long a core may need to leave its deepest C-state; 0 if an interrupt's entry does not show it."""
    deepest = max(host.exit_ns, default=0)
    return int(FITS * deepest) + ENTRY_NS if deepest > ENTRY_NS else 0


@dataclass(frozen=True)
class Told:
    """By row of ``messages``: when the interrupt that announced it began (-1: unknown or none), and an index into SUBJECTS."""

    at: Int
    why: Int


def nothing_told(n_messages: int) -> Told:
    """The result for ``n_messages`` messages of which nothing is known."""
    return Told(np.full(n_messages, -1), np.zeros(n_messages, np.int64))


def where(messages: pd.DataFrame) -> tuple[Int, Int, Int]:
    """Intervals of receive cores (cpu, begin, end) whose contexts ``told`` needs."""
    nic, arrival, core = (column(messages[c]) for c in ("nic_ns", "arrival_ns", "recv_cpu"))
    waits = (nic >= 0) & (arrival > nic)
    return core[waits], nic[waits] - MARGIN_NS, arrival[waits] + MARGIN_NS


def softirq_threads(messages: pd.DataFrame) -> list[str]:
    """The threads of receive cores that process softirqs which interrupts leave, by name."""
    cores = column(messages["recv_cpu"])
    return [f"ksoftirqd/{cpu}" for cpu in np.unique(cores[cores >= 0]).tolist()]


def told(
    messages: pd.DataFrame, contexts: pd.DataFrame, power: pd.DataFrame, left: pd.DataFrame, host: Host
) -> Told:
    """Announcing interrupts of messages received with a NIC timestamp; ``contexts`` of the intervals ``where``.

    ``power``: rows of ``calls`` of that kind (cpu, start_ns). ``left``: when each of ``softirq_threads`` was ready to run
    (comm, start_ns, end_ns).
    """
    nothing = nothing_told(len(messages))
    at, why = nothing.at, nothing.why
    nic, arrival, core = (column(messages[c]) for c in ("nic_ns", "arrival_ns", "recv_cpu"))
    candidates = (nic >= 0) & (arrival > nic) & are_received(messages)
    is_local = (messages["nic_source"].astype(str) == "peer_xmit").to_numpy()
    kind, symbol = contexts["kind"].astype(str), contexts["symbol"].astype(str)
    is_poll = ((kind == "softirq") & (symbol == "NET_RX")).to_numpy()
    is_irq = (kind == "hardirq").to_numpy()
    if not candidates.any() or not is_irq.any():
        return Told(at, why)
    cpu, start, end, of = (column(contexts[c]) for c in ("cpu", "start_ns", "end_ns", "call_id"))
    begins, ends = _whole(of, start, end)
    names = symbol.to_numpy(object)
    is_timer, is_device = np.isin(names, TIMERS) & is_irq, ~np.isin(names, INTERNAL) & is_irq
    is_ipi = np.isin(names, INTER_PROCESSOR) & is_irq
    of_core = left["comm"].astype(str)
    for value in np.unique(core[candidates]):  # receive cores are few
        rows = np.flatnonzero(candidates & (core == value))
        poll = np.flatnonzero(is_poll & (cpu == value))
        irq = np.flatnonzero(is_irq & (cpu == value))
        if not len(poll) or not len(irq):
            continue
        # The interval of receive softirq that the message arrived in, and when that softirq began.
        place = poll[np.maximum(np.searchsorted(start[poll], arrival[rows], "right") - 1, 0)]
        inside = (start[place] <= arrival[rows]) & (ends[place] >= arrival[rows])
        since = begins[place]
        last = np.searchsorted(end[irq], since, "right") - 1
        before = irq[np.maximum(last, 0)]
        local = is_local[rows]
        follows = (last >= 0) & (since - end[before] <= ADJACENT_NS)
        pending = _pending(since, left[of_core == f"ksoftirqd/{value}"])
        follows &= np.where(is_timer[before], ~pending, ~local | is_ipi[before])
        began = np.where(follows, begins[before], -1)
        timer = follows & is_timer[before]
        # A device's interrupt that came earlier: the poll was deferred, and this interrupt announced the message.
        device = irq[is_device[irq]]
        early = np.searchsorted(begins[device], nic[rows])
        first = device[np.minimum(early, max(len(device) - 1, 0))] if len(device) else before
        seen = (early < len(device)) & (begins[first] < since) & ~local
        began, timer = np.where(seen, begins[first], began), timer & ~seen
        # A poll for other packets keeps the NIC's interrupt masked: from then on, a missing interrupt says nothing. Except where a
        # timer made the core look: then no interrupt was due, whatever was polled meanwhile.
        polled = np.searchsorted(end[poll], nic[rows], "right")
        masked = np.where(timer | (began < 0), began, start[poll[np.minimum(polled, len(poll) - 1)]])
        began = np.minimum(began, masked)
        found = inside & (since > nic[rows]) & (began > nic[rows])
        rows, began, timer, local = rows[found], began[found], timer[found], local[found]
        at[rows] = began
        idle = _idle_until(began, np.flatnonzero(cpu == value), kind.to_numpy(object), start, end)
        exits = _exits(began, nic[rows], value, power)
        why[rows] = _why(began - nic[rows], timer, local, idle, exits, host)
    return Told(at, why)


def _why(
    waited: Int,
    timer: npt.NDArray[np.bool_],
    local: npt.NDArray[np.bool_],
    idle: npt.NDArray[np.bool_],
    exits: npt.NDArray[np.bool_],
    host: Host,
) -> Int:
    most = host.coalesce_ns * FITS + ENTRY_NS
    # An adaptive NIC waits as long as it likes; another waits as long as its setting says, and rarely much less.
    fits = (host.coalesce_ns < 0) | (
        (host.coalesce_ns > 0) & (waited <= most) & (waited >= host.coalesce_ns / FITS / 2)
    )
    fits &= ~local
    asleep = idle & (exits | (waited <= longest_wakeup_ns(host)))
    return np.where(timer | fits, COALESCED, np.where(asleep, ASLEEP, LATE))


def _pending(since: Int, left: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether softirqs were pending at each time ``since``; ``left``: when the core's ksoftirqd was ready to run."""
    begin, end = np.sort(column(left["start_ns"])), np.sort(column(left["end_ns"]))
    return np.asarray(np.searchsorted(begin, since) > np.searchsorted(end, since))


def _whole(of: Int, start: Int, end: Int) -> tuple[Int, Int]:
    """Begin and end of the whole context to which each interval belongs."""
    parts = np.where(of >= 0, of, -2 - np.arange(len(of)))
    frame = pd.DataFrame({"of": parts, "start": start, "end": end}).groupby("of", sort=False)
    return frame["start"].transform("min").to_numpy(), frame["end"].transform("max").to_numpy()


def _idle_until(
    at: Int, rows: Int, kind: npt.NDArray[np.object_], start: Int, end: Int
) -> npt.NDArray[np.bool_]:
    """Whether the core was idle right before each time; ``rows``: its contexts, in order."""
    place = rows[np.maximum(np.searchsorted(start[rows], at) - 1, 0)]
    return np.asarray((kind[place] == "idle") & (at - end[place] <= ADJACENT_NS))


def _exits(at: Int, since: Int, cpu: int, power: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether the core recorded a power event (Intel PT) in each wait, or right after it."""
    times = np.sort(column(power["start_ns"])[column(power["cpu"]) == cpu])
    return np.asarray(np.searchsorted(times, at + ENTRY_NS, "right") > np.searchsorted(times, since))
