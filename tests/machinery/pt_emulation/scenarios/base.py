# SPDX-License-Identifier: GPL-2.0-only
"""Definition of a scenario. Its hooks run in the guest; its truth is computed on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from machinery.testbed.bed import Server, Testbed

Hook = Callable[["Testbed", "Server"], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def nothing(bed: Testbed, server: Server) -> Iterator[None]:
    """No disturbance."""
    yield


@dataclass(frozen=True)
class Cause:
    """What delays some messages, and how the observer's log shows when.

    ``evidence``: ``marks`` (a program marks its beginning and end, number ``mark``),
    ``functions`` (the time inside ``symbols`` of the kernel, without that of other tasks),
    ``wake-ups`` (from the interrupt that wakes the application's core to its first instruction,
    where that took ``above`` ns) or ``excess`` (what a request took above the median of the others,
    for requests of a burst and those that took at least ``above`` ns; of functions, a request's share
    below ``above`` is what every request has). ``core``: A, R, or other. ``names``: symbols or threads
    that a correct diagnosis names.
    """

    id: str
    what: str
    core: str
    evidence: str
    mark: int | None = None
    symbols: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    above: int = 0


@dataclass(frozen=True)
class Scenario:
    """One capture.

    ``server``: a kind of the testbed, ``app`` (``pt-app``) with ``app_cause``, or ``user-stack``
    (``pt-user-stack``). ``load``: options of the load client. ``encode``: options of pt-encode; ``{from}``
    and ``{to}`` stand for TSC values a third and a bit more into the capture. ``gro``: the server's
    interface has GRO, and with it NAPI. ``modules``: kernel modules that the disturbance needs, loaded
    before any BPF program: stock perf does not find the code of a module that lies after one in memory.
    ``recording``: the scenario whose recording this one encodes in another way. ``expect``: what a
    diagnosis can and cannot show.
    """

    name: str
    what: str
    cause: Cause | None = None
    server: str = "memcached"
    app_cause: str = "none"
    load: tuple[str, ...] = ("-c", "4", "-r", "0", "-n", "60")
    cpus: int = 1
    disturb: Hook = nothing
    encode: tuple[str, ...] = ()
    expect: str = ""
    gro: bool = False
    modules: tuple[str, ...] = ()
    recording: str = ""

    @property
    def watch(self) -> tuple[str, ...]:
        """Kernel functions whose entry the observer logs with its arguments."""
        return ("__switch_to_asm",)
