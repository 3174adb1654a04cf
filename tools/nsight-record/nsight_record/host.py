# SPDX-License-Identifier: GPL-2.0-only
"""Facts about the machine, and one instant in all clocks."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import re
import socket
import time
from pathlib import Path
from typing import Any

#: Maximum number of resctrl groups to report; processors have at most this many classes.
MOST_GROUPS = 64

#: Its number in Linux; the module time does not have it.
_CLOCK_MONOTONIC_COARSE = 6

# lfence; rdtsc; shl rdx,32; or rax,rdx; lfence; ret. Python has no other way to read the counter.
_RDTSC = bytes.fromhex("0faee80f3148c1e2204809d00faee8c3")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _cpuinfo(root: Path, key: str) -> str | None:
    match = re.search(rf"^{key}\s*:\s*(.*)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match.group(1).strip() if match else None


def tsc_khz(root: Path) -> int | None:
    """TSC rate as the kernel's log or sysfs states it; None when neither does.

    nsight-clock measures it as well; this one is for reading a capture by eye.
    """
    exported = _read(root / "sys/devices/system/cpu/cpu0/tsc_freq_khz")
    if exported and exported.isdecimal():
        return int(exported)
    return None


def _idle_states(root: Path) -> list[dict[str, Any]]:
    """C-states of core 0: name, exit latency in us, whether disabled."""
    states = []
    for directory in sorted((root / "sys/devices/system/cpu/cpu0/cpuidle").glob("state*")):
        latency = _read(directory / "latency")
        states.append(
            {
                "name": _read(directory / "name"),
                "latency_us": int(latency) if latency and latency.isdecimal() else None,
                "disabled": _read(directory / "disable") == "1",
            }
        )
    return states


def _idle_limit(root: Path) -> int | None:
    """Maximum exit latency of C-states that is requested (PM QoS), in us; None: unknown."""
    try:
        limit = (root / "dev/cpu_dma_latency").open("rb").read(4)
    except OSError:
        return None
    return int.from_bytes(limit, "little", signed=True) if len(limit) == 4 else None


def _turbo(cpu: Path) -> bool | None:
    boost, none = _read(cpu / "cpufreq/boost"), _read(cpu / "intel_pstate/no_turbo")
    if boost in ("0", "1"):
        return boost == "1"
    return none == "0" if none in ("0", "1") else None


def core_khz(root: Path = Path("/")) -> dict[str, int]:
    """``manifest.core_khz``: the frequency of each core whose frequency can be read."""
    found = {}
    for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        khz = _read(path) or ""
        if khz.isdecimal():
            found[path.parent.parent.name.removeprefix("cpu")] = int(khz)
    return found


def has_pmu(root: Path) -> bool:
    """Whether the processor's performance counters can be read: one kind of core, or several."""
    devices = root / "sys/bus/event_source/devices"
    return any((devices / name).exists() for name in ("cpu", "cpu_core", "armv8_pmuv3_0"))


def page_fault_ns() -> int | None:
    """``manifest.page_fault_ns``: the time of a small-page fault, from the fastest of some rounds; None:
    unknown."""
    pages, rounds = 128, 7
    took = []
    for _ in range(rounds):
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
            # A huge page would be a single fault. Kernels without huge pages refuse the advice.
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            times = [time.perf_counter_ns()]
            for _again in range(2):
                for place in range(0, len(memory), mmap.PAGESIZE):
                    memory[place] = 1
                times.append(time.perf_counter_ns())
        # The second pass finds every page mapped: that is the time of the loop itself.
        took.append((times[1] - times[0] - (times[2] - times[1])) // pages)
    return min(took) if min(took) > 0 else None


def _in_a_guest(root: Path) -> bool | None:
    """Whether this machine is virtual, by the processor's own flag; None: the processor has no such flags."""
    flags = _cpuinfo(root, "flags")
    return None if flags is None else "hypervisor" in flags.split()


def tick_ns() -> int | None:
    """ns between two timer ticks of a busy core: the coarse clock advances with them."""
    try:
        return round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e9)
    except OSError:
        return None


def _affinity() -> list[int]:
    """Cores that the recorded command may use: the same as nsight-record may."""
    return sorted(os.sched_getaffinity(0))


def _numa_nodes(root: Path) -> dict[str, str]:
    """Cores of each memory node."""
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    return {node.name: _read(node / "cpulist") or "" for node in nodes}


def _resctrl(root: Path) -> dict[str, str] | None:
    """Allocation of caches and memory bandwidth by group ('': the default group); None: not mounted."""
    top = root / "sys/fs/resctrl"
    if not (top / "schemata").exists():
        return None
    groups = [top, *sorted(path.parent for path in top.glob("*/schemata"))][:MOST_GROUPS]
    return {str(of.relative_to(top)).removeprefix("."): _read(of / "schemata") or "" for of in groups}


def describe(root: Path = Path("/")) -> dict[str, Any]:
    """``manifest.host``. What cannot be read is null."""
    cpu = root / "sys/devices/system/cpu"
    uname = platform.uname()
    return {
        "hostname": socket.gethostname(),
        "kernel": uname.release,
        "kernel_version": uname.version,
        "machine": uname.machine,
        "boot_id": _read(root / "proc/sys/kernel/random/boot_id"),
        "cpu_model": _cpuinfo(root, "model name"),
        "n_cpus": os.cpu_count(),
        "cpus_online": _read(cpu / "online"),
        "tsc_khz": tsc_khz(root),
        "hypervisor": _in_a_guest(root),
        "tick_ns": tick_ns(),
        "clocksource": _read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "governor": _read(cpu / "cpu0/cpufreq/scaling_governor"),
        "idle_driver": _read(cpu / "cpuidle/current_driver"),
        "idle_states": _idle_states(root),
        "idle_limit_us": _idle_limit(root),
        "turbo": _turbo(cpu),
        "smt": _read(cpu / "smt/control"),
        "isolated": _read(cpu / "isolated"),
        "nohz_full": _read(cpu / "nohz_full"),
        "affinity": _affinity(),
        "numa_nodes": _numa_nodes(root),
        "numa_balancing": _read(root / "proc/sys/kernel/numa_balancing"),
        "huge_pages": _read(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "resctrl": _resctrl(root),
        "pmu": has_pmu(root),
        "lockdown": _read(root / "sys/kernel/security/lockdown"),
    }


class Clocks:
    """Reads one instant in all clocks."""

    def __init__(self) -> None:
        self._rdtsc = None
        if platform.machine() == "x86_64":
            try:
                self._code = mmap.mmap(
                    -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
                )
            except OSError:  # forbidden by a policy against writable code: the manifest then has no tsc
                return
            self._code.write(_RDTSC)
            address = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
            self._rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)

    def tsc(self) -> int | None:
        """The timestamp counter; None if this machine has none that can be read."""
        return self._rdtsc() if self._rdtsc else None

    def now(self) -> dict[str, int | None]:
        """``manifest.start`` and ``stop``: all clocks, read one after the other within some us."""
        return {
            "tsc": self.tsc(),
            "monotonic_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
            "realtime_ns": time.clock_gettime_ns(time.CLOCK_REALTIME),
            "boottime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            "tai_ns": time.clock_gettime_ns(time.CLOCK_TAI),
        }


def earlier(now: dict[str, int | None], monotonic_ns: int, khz: int | None) -> dict[str, int | None]:
    """The clocks at an earlier time of CLOCK_MONOTONIC, provided that none of them was set since."""
    ago = (now["monotonic_ns"] or 0) - monotonic_ns
    then = {name: None if ns is None else ns - ago for name, ns in now.items()}
    tsc = now["tsc"]
    then["tsc"] = tsc - ago * khz // 1_000_000 if tsc and khz else None
    return then


def syscall_names() -> dict[str, str]:
    """System call number to name for this architecture; empty when the architecture is unknown.

    tracefs lists system calls by name only, and the server may have no kernel headers, so this module has its
    own table.
    """
    table = Path(__file__).with_name(f"syscalls_{platform.machine()}.txt")
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split() for line in lines if line and not line.startswith("#"))
