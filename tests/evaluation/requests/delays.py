# SPDX-License-Identifier: GPL-2.0-only
"""What was injected into a request, as its server knows it: not the time for which a thread waited for a core or for Python's lock.

A server that only measured how long its work took would log every delay of a busy machine as its own fault.
"""

from __future__ import annotations

import fcntl
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

#: Shorter delays are not a fault.
LEAST_NS = 500_000
#: Two clocks are read within this time.
NEAR_NS = 50_000
#: From linux/net_tstamp.h: the time at which a driver got the last byte of a write, without the data.
_TX_SOFTWARE, _SOFTWARE, _OPT_ID, _OPT_TSONLY = 1 << 1, 1 << 4, 1 << 7, 1 << 11
_SO_TIMESTAMPING = 37
#: From linux/sockios.h: how many bytes of a connection TCP has not passed on yet.
_SIOCOUTQNSD = 0x894B

Span = tuple[int, int]
Note = Callable[[int, Iterable[Span]], None]


class Log:
    """Lines "port start end" of delayed requests: peer's port, CLOCK_MONOTONIC ns."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115
        self._lock = threading.Lock()

    def __call__(self, port: int, delays: Iterable[Span]) -> None:
        """A request's delays, unless they are too short in total."""
        found = [(start, end) for start, end in delays if end > start]
        if sum(end - start for start, end in found) >= LEAST_NS:
            with self._lock:
                self._file.writelines(f"{port} {start} {end}\n" for start, end in found)


def waited_for_a_core_ns() -> int:
    """How long this thread has been ready without running, by the kernel's count."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


class Work:
    """What one thread does from here on: without its waits for a core, and at most ``most_ns`` if the fault's size is known."""

    def __init__(self, most_ns: int | None = None) -> None:
        self._most_ns, self._ready_ns = most_ns, waited_for_a_core_ns()
        self._start = time.monotonic_ns()

    def until_now(self) -> list[Span]:
        """One delay."""
        took = time.monotonic_ns() - self._start - (waited_for_a_core_ns() - self._ready_ns)
        return [(self._start, self._start + (took if self._most_ns is None else min(took, self._most_ns)))]


class Acts:
    """When a fault acted, in any thread: the recent times."""

    KEPT = 64

    def __init__(self) -> None:
        self._spans: list[list[int]] = []
        self._lock = threading.Lock()

    def act(self, seconds: float) -> None:
        """Sleep, which is the fault."""
        span = [time.monotonic_ns(), -1]
        with self._lock:
            self._spans = [*self._spans[-self.KEPT :], span]
        time.sleep(seconds)
        # The sleep may end late, but what it was asked for is the fault.
        span[1] = min(time.monotonic_ns(), span[0] + int(seconds * 1e9))

    def within(self, start: int, end: int, at_once: int = 1) -> list[Span]:
        """The parts of a wait in which so many of them acted at once."""
        spans = [(low, end if high < 0 else high) for low, high in self._spans]
        times = sorted({start, end, *(t for span in spans for t in span if start < t < end)})
        return [
            (low, high)
            for low, high in itertools.pairwise(times)
            if sum(a <= low and high <= b for a, b in spans) >= at_once
        ]


def holds_back(connection: socket.socket) -> bool:
    """Whether TCP has not passed on everything that was written."""
    (n_bytes,) = struct.unpack("i", fcntl.ioctl(connection, _SIOCOUTQNSD, bytes(4)))
    return bool(n_bytes)


def ahead_ns() -> int:
    """By how much CLOCK_REALTIME is ahead of CLOCK_MONOTONIC. A thread that loses its core between the two clocks reads them again."""
    for _ in range(100):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before <= NEAR_NS:
            return now - (before + after) // 2
    raise RuntimeError(f"no two clocks within {NEAR_NS} ns in 100 readings")


class Departures:
    """Writes on a connection, and how long each was on its way to the driver, by the kernel's timestamp of its last byte."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._since_ns = connection, 0
        asked = _TX_SOFTWARE | _SOFTWARE | _OPT_ID | _OPT_TSONLY
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, asked)

    def send(self, data: bytes) -> None:
        """Write all of ``data``. That it is made, and that the thread waits for a core in the call, is no delay on the way."""
        # In this order: a core lost between the two makes the delay shorter, never longer.
        ready = waited_for_a_core_ns()
        start = time.monotonic_ns()
        self._connection.sendall(data)
        self._since_ns = start + waited_for_a_core_ns() - ready

    def delay(self) -> list[Span]:
        """The way of what ``send`` wrote last, if its departure has not been read yet."""
        return [(self._since_ns, self._last_ns())]

    def _last_ns(self) -> int:
        found = -1
        with suppress(BlockingIOError):
            while True:
                flags = socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT
                for level, kind, data in self._connection.recvmsg(0, 256, flags)[1]:
                    if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPING):
                        s, ns = struct.unpack("qq", data[:16])
                        found = max(found, s * 10**9 + ns)
        return found if found < 0 else found - ahead_ns()
