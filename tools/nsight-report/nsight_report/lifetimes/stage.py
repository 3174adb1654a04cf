# SPDX-License-Identifier: GPL-2.0-only
"""Message events to messages, plus intervals of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..losses import Ledger, merge
from ..manifest import Manifest
from ..stage import CHOSEN, RECORDS, Context, Result, Stage

if TYPE_CHECKING:
    from ..clocks import ClockMap
    from .options import Intervals, PhcToMonotonic


def _run(ctx: Context) -> Result:
    from ..clocks import ClockMap
    from .build import build
    from .options import LifetimeOptions

    clock = ClockMap(ctx.table("clock_map"))
    of_intervals = Ledger("lifetimes")
    framing = None if ctx.options.framing == "none" else ctx.options.framing
    wall, uptime = ctx.manifest.ns("start", "realtime_ns"), ctx.manifest.ns("start", "monotonic_ns")
    options = LifetimeOptions(
        phc_to_monotonic=phc_converter(clock, ctx.manifest),
        realtime_offset_ns=wall - uptime if wall is not None and uptime is not None else None,
        framing=framing,
        payload=_payload(ctx) if framing else None,
        intervals=_ahead(_intervals(ctx, clock, of_intervals)),
    )
    assert ctx.scratch is not None  # a running stage has one
    table, lost = build(ctx.stored("events"), ctx.scratch, options)
    return {"messages": table}, merge([lost, of_intervals.table()])


def _ahead(items: Iterable[Intervals]) -> Iterator[Intervals]:
    """``items``; the next one is read while the current one is processed."""
    of = iter(items)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, of, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, of, None)
            yield item


def _intervals(ctx: Context, clock: ClockMap, ledger: Ledger) -> Iterable[Intervals]:
    """Intervals of the file, if there is one, and recorded intervals."""
    from .intervals import of_file, of_records, recorded

    if ctx.options.intervals:
        # Thread states; not known yet if they are only decoded once messages are chosen.
        states = None if ctx.options.decode == CHOSEN else ctx.stored("thread_states")
        yield from of_file(Path(ctx.options.intervals), clock, states, ledger)
    elif ctx.has_records and recorded(ctx.manifest):
        yield from of_records(ctx.raw(RECORDS), ctx.manifest, ledger)


def _payload(ctx: Context) -> Path:
    if not (ctx.capture / "payload.pcap").exists():
        raise BadInput(
            f"{ctx.capture}: no payload.pcap, so messages cannot be framed",
            "record with --payload, or leave --framing out",
        )
    return ctx.raw("payload.pcap")


def phc_converter(clock: ClockMap, manifest: Manifest) -> PhcToMonotonic | None:
    """Converter of hardware timestamps by the interface that took them; None if no NIC clock was read.

    For an interface whose clock was not read, the error is -1: its timestamps cannot be used.
    """
    domains = [d for d in clock.domains if d.startswith("phc:")]
    if not domains:
        return None
    by_interface = {
        nic["ifindex"]: f"phc:ptp{nic['phc']}"
        for nic in manifest.list("nics")
        if isinstance(nic.get("ifindex"), int) and isinstance(nic.get("phc"), int)
    }

    def convert(
        stamps: npt.NDArray[np.int64], interfaces: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        ns, error = np.zeros(len(stamps), np.int64), np.full(len(stamps), -1, np.int64)
        for interface in np.unique(interfaces):
            # With a single NIC clock there is no ambiguity.
            domain = by_interface.get(int(interface), domains[0] if len(domains) == 1 else None)
            if domain in domains:
                rows = np.flatnonzero(interfaces == interface)
                ns[rows], bound, good = clock.convert_masked(stamps[rows], domain, "monotonic")
                error[rows] = np.where(good, bound, -1)
        return ns, error

    return convert


STAGE = Stage(
    "messages",
    _run,
    needs=("events", "clocks"),
    raw=("payload.pcap", "manifest.json"),
    options=("framing", "intervals"),
    tables=("messages",),
    programs=("nsight-framing", "nsight-rawdata"),
    of_threads=True,
)
