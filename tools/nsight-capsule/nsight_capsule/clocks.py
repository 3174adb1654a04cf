# SPDX-License-Identifier: GPL-2.0-only
"""Clocks that several kernels have in common: a PTP clock, a synchronised CLOCK_REALTIME, the TSC of a KVM host.

Each kernel reads the common clock between two readings of CLOCK_MONOTONIC, the clock of its timestamps. From the
readings of two kernels, ``nsight-report hops`` finds how their CLOCK_MONOTONIC differ, better than from packets.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nsight_record import host
from nsight_record.errors import Missing

_TRIES = 9
_EVERY_NS = 100_000_000
#: Readings that are kept. Once there are more, every second one is dropped, and half as many are taken.
MOST_READINGS = 4096
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6}
_SYSTEM = {"realtime": time.CLOCK_REALTIME, "tai": time.CLOCK_TAI}
DEBUGFS = Path("/sys/kernel/debug/kvm")


@dataclass(frozen=True)
class Common:
    """``name``: realtime, tai, or the path of a PTP hardware clock. In this kernel it is off by at most ``bound_ns``."""

    name: str
    bound_ns: int


def common(text: str) -> Common:
    """``CLOCK,BOUND``. Raises ValueError.

    >>> common("/dev/ptp0,500ns"), common("realtime,2ms").bound_ns
    (Common(name='/dev/ptp0', bound_ns=500), 2000000)
    """
    match = re.fullmatch(r"(realtime|tai|/dev/[^,]+),(\d{1,9})(ns|us|ms)", text)
    if not match:
        raise ValueError(text)
    return Common(match[1], int(match[2]) * _UNITS[match[3]])


common.__name__ = "clock and its bound, such as /dev/ptp0,1us"


def guest(text: str) -> tuple[str, int]:
    """``NAME=PID``. Raises ValueError.

    >>> guest("web=4711")
    ('web', 4711)
    """
    name, _, pid = text.rpartition("=")
    if not name or not re.fullmatch(r"\d{1,9}", pid):
        raise ValueError(text)
    return name, int(pid)


guest.__name__ = "guest, such as web=4711"


def reader(clock: Common) -> Callable[[], int]:
    """A function that reads the clock in ns. Raises Missing."""
    if clock.name in _SYSTEM:
        return lambda: time.clock_gettime_ns(_SYSTEM[clock.name])
    try:
        fd = os.open(clock.name, os.O_RDONLY | os.O_CLOEXEC)
        number = ~fd << 3 | 3  # FD_TO_CLOCKID
        time.clock_gettime_ns(number)
    except OSError as e:
        raise Missing(
            f"--clock {clock.name}: {e.strerror}",
            "give a PTP hardware clock: /sys/class/ptp lists them; a KVM guest has one with modprobe ptp_kvm",
        ) from e
    return lambda: time.clock_gettime_ns(number)


def bracketed(read: Callable[[], int], monotonic: Callable[[], int] = time.monotonic_ns) -> list[int]:
    """CLOCK_MONOTONIC before, the value, CLOCK_MONOTONIC after: the closest of some tries."""
    return min(([monotonic(), read(), monotonic()] for _ in range(_TRIES)), key=lambda r: r[2] - r[0])


class Readings:
    """Readings of one clock, ten a second; less often in a long run."""

    def __init__(self, read: Callable[[], int]) -> None:
        self.taken: list[list[int]] = []
        self._read, self._every, self._next = read, _EVERY_NS, 0

    def take(self, always: bool = False) -> None:
        """Take one if it is time for it, or ``always``."""
        if not always and time.monotonic_ns() < self._next:
            return
        self.taken.append(bracketed(self._read))
        if len(self.taken) > MOST_READINGS:
            del self.taken[1::2]
            self._every *= 2
        self._next = self.taken[-1][2] + self._every


def in_time_namespace() -> bool:
    """Whether this process sees a CLOCK_MONOTONIC that is not the one of the kernel's timestamps."""
    with suppress(OSError):
        text = Path("/proc/self/timens_offsets").read_text()
        return any(line.split()[1:] != ["0", "0"] for line in text.splitlines())
    return False


def guest_tsc(name: str, pid: int, root: Path = DEBUGFS) -> dict[str, int]:
    """How KVM makes the guest's TSC: ``(host's TSC * ratio >> ratio_bits) + offset``. Raises Missing.

    The files of a virtual machine are in ``PID-FD``, and each virtual CPU has its own.
    """
    found = {
        tuple(_number(cpu / f"tsc-{part}") for part in ("offset", "scaling-ratio", "scaling-ratio-frac-bits"))
        for cpu in root.glob(f"{pid}-*/vcpu*")
    }
    if not found:
        raise Missing(
            f"--guest {name}={pid}: {root} has no virtual machine of that process",
            "mount -t debugfs none /sys/kernel/debug; give the process of QEMU, with KVM",
        )
    offset, ratio, bits = found.pop()
    if found or offset is None:
        raise Missing(
            f"--guest {name}={pid}: its virtual CPUs have different TSCs, or {root} does not say which",
            "leave out --guest: packets show how its clock differs",
        )
    # Without hardware for it, KVM does not scale, and these files do not exist.
    return {"offset": offset, "ratio": 1 if ratio is None else ratio, "ratio_bits": bits or 0}


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


class Clocks:
    """What one run knows of clocks that other kernels have, too; ``manifest`` is its part of manifest.json.

    Raises Missing.
    """

    def __init__(self, clock: Common | None, guests: Iterable[tuple[str, int]], root: Path = DEBUGFS) -> None:
        self._guests, self._root, self._clock = dict(guests), root, clock
        self._known = self._look()
        self._readings: dict[str, Readings] = {}
        tsc, shifted = host.Clocks(), in_time_namespace()
        if clock:
            if shifted:
                raise Missing("--clock: this process is in a time namespace", "run it in the initial one")
            self._readings["common"] = Readings(reader(clock))
        if tsc.tsc() is not None and not shifted:
            self._readings["tsc"] = Readings(lambda: tsc.tsc() or 0)

    def _look(self) -> dict[str, dict[str, int]]:
        return {name: guest_tsc(name, pid, self._root) for name, pid in self._guests.items()}

    def take(self, always: bool = False) -> None:
        """Read each clock, if it is time for it."""
        for readings in self._readings.values():
            readings.take(always)

    def end(self) -> list[str]:
        """Read each clock for the last time. Returns the guests whose TSC has changed: it is not known any more."""
        self.take(always=True)
        changed = []
        for name, pid in self._guests.items():
            try:
                same = guest_tsc(name, pid, self._root) == self._known[name]
            except Missing:
                same = True  # it has ended meanwhile
            if not same:
                del self._known[name]
                changed.append(name)
        return changed

    def manifest(self) -> dict[str, object]:
        """``manifest.common``."""
        return {
            "clock": self._clock and {"name": self._clock.name, "bound_ns": self._clock.bound_ns},
            "readings": {name: readings.taken for name, readings in self._readings.items()},
            "guests": self._known,
        }
