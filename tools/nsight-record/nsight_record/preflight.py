# SPDX-License-Identifier: GPL-2.0-only
"""What this machine lacks for the requested recording, and how to fix it. Changes nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import clock, collect, payload, perf, probes
from .errors import EXIT_IO, Usage
from .machine import ERROR, INFO, WARNING, Finding, Machine
from .progress import human_bytes

# Capability bits, include/uapi/linux/capability.h.
_CAP_IPC_LOCK, _CAP_SYS_ADMIN = 14, 21
_FIRST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO

DISK_MINIMUM = 128 * perf.MIB
_BYTES_PER_CORE_SECOND = {"tracepoints": 24 * perf.MIB, "intel-pt": 200 * perf.MIB}


@dataclass
class Request:
    """What will be recorded."""

    mode: str
    capture_parent: Path
    duration: float | None = None
    filters: probes.Filters = field(default_factory=probes.Filters)
    nics: Sequence[Mapping[str, Any]] = ()
    chosen_iface: str | None = None
    payload: bool = False
    recorder: str = "bpftrace"


def resolve_mode(asked: str, machine: Machine) -> str:
    """``auto`` is intel-pt where the kernel offers Intel PT, else tracepoints."""
    if asked != "auto":
        return asked
    return "intel-pt" if perf.has_intel_pt(machine.root) else "tracepoints"


def resolve_recorder(asked: str, machine: Machine, lwip: bool) -> str:
    """``auto`` is bpf where nsight-collect is built and the kernel has what it needs, else bpftrace."""
    if lwip and asked == "bpf":
        raise Usage("--lwip needs --recorder bpftrace", "leave out --recorder")
    if asked != "auto":
        return asked
    return "bpftrace" if lwip or _bpf_problem(machine) else "bpf"


def _bpf_problem(machine: Machine) -> Finding | None:
    """Why nsight-collect cannot record here."""
    program = collect.find(machine.path)
    if program is None:
        hint = "make -C tools/nsight-record/collect in the source tree (needs clang and bpftool)"
        return Finding("nsight-collect is not built", ERROR, f"{hint}, or --recorder bpftrace")
    code, said = machine.version_of([program, "--check"])
    if code:
        what = said.removeprefix("error: ") or f"nsight-collect --check failed with {code}"
        return Finding(what, ERROR, "use a newer kernel with CONFIG_DEBUG_INFO_BTF=y, or --recorder bpftrace")
    return None


def check(machine: Machine, request: Request) -> list[Finding]:
    """Every finding, errors first."""
    findings = [
        *_privilege(machine, request),
        *_programs(machine, request),
        *_kernel(machine, request),
        *_lockdown(machine),
        *_clocks(machine),
        *_disk(machine, request),
        *_nics(request),
    ]
    return sorted(findings, key=lambda f: (ERROR, WARNING, INFO).index(f.severity))


def _needs_perf(request: Request) -> bool:
    return request.recorder == "bpftrace" or request.mode == "intel-pt"


def _privilege(machine: Machine, request: Request) -> list[Finding]:
    if machine.euid != 0:
        return [Finding("not root: system-wide tracing is refused", ERROR, "run it with sudo")]
    found = []
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.read("proc/self/status") or "", re.MULTILINE)
    capabilities = int(match.group(1), 16) if match else ~0
    if not capabilities >> _CAP_SYS_ADMIN & 1:
        found.append(
            Finding(
                "root without CAP_SYS_ADMIN: a container?", ERROR, "run it on the host, not in a container"
            )
        )
    link = machine.root / "proc/self/ns/pid"
    if link.is_symlink() and str(link.readlink()) != _FIRST_PIDS:
        what = "this PID namespace is not the host's, but the kernel's records have the host's PIDs"
        found.append(Finding(what, ERROR, "run it on the host, or in a container with --pid=host"))
    limit = machine.read("proc/sys/kernel/perf_event_mlock_kb")
    locks = _needs_perf(request) and not capabilities >> _CAP_IPC_LOCK & 1
    if locks and limit and limit.isdecimal():
        buffers = perf.choose_buffers("tracepoints", machine.n_cpus, perf.mem_available(machine.root))
        needed = (buffers.data // 1024 + 4) * machine.n_cpus
        if int(limit) < needed:
            found.append(
                Finding(
                    f"kernel.perf_event_mlock_kb is {limit}, and without CAP_IPC_LOCK perf needs {needed}",
                    ERROR,
                    f"sysctl kernel.perf_event_mlock_kb={needed}, or --fix",
                    ("sysctl", "kernel/perf_event_mlock_kb", str(needed)),
                )
            )
    return found


def _programs(machine: Machine, request: Request) -> list[Finding]:
    found = []
    if request.recorder == "bpf" and (problem := _bpf_problem(machine)):
        found.append(problem)
    if not _needs_perf(request):
        pass
    elif not perf.find(machine.path):
        found.append(_absent(machine, "perf", "apt install linux-perf (other systems: perf)"))
    else:
        code, _ = machine.version_of(["perf", "--version"])
        if code:
            found.append(
                Finding("perf does not run on this kernel", ERROR, "install the perf of the running kernel")
            )
    if request.recorder == "bpftrace" and not probes.find(machine.path):
        found.append(_absent(machine, "bpftrace", "apt install bpftrace (0.17 or newer)"))
    if not clock.find(machine.path):
        found.append(
            Finding(
                "nsight-clock is not built", ERROR, "make -C tools/nsight-record/clock in the source tree"
            )
        )
    if request.payload and not payload.find(machine.path):
        found.append(_absent(machine, "tcpdump", "apt install tcpdump", ", --payload needs it"))
    return found


def _absent(machine: Machine, program: str, hint: str, why: str = "") -> Finding:
    """The program is not installed, or only in a place from which root runs no programs."""
    elsewhere = shutil.which(program, path=machine.callers_path)
    if machine.path is None or elsewhere is None:
        return Finding(f"{program} is not installed{why}", ERROR, hint)
    return Finding(
        f"{program} is only at {elsewhere}{why}; as root, programs are only run from {machine.path}",
        ERROR,
        f"{hint}, or link it from one of these directories",
    )


def _kernel(machine: Machine, request: Request) -> list[Finding]:
    found = []
    if request.mode == "intel-pt" and not perf.has_intel_pt(machine.root):
        found.append(
            Finding(
                "mode intel-pt: this processor or virtual machine has no Intel PT",
                ERROR,
                "--mode tracepoints works everywhere; Intel PT needs bare metal or a hypervisor that passes it on",
            )
        )
    if not (machine.root / "sys/kernel/btf/vmlinux").exists():
        found.append(
            Finding(
                "the kernel has no BTF, which the probes need",
                ERROR,
                "use a kernel with CONFIG_DEBUG_INFO_BTF=y",
            )
        )
    if request.recorder == "bpf":
        return found  # its programs find tracepoints by BTF types
    tracefs = machine.tracefs()
    if tracefs is None and machine.euid != 0:
        return found  # only root can tell whether it is mounted
    if tracefs is None:
        found.append(
            Finding(
                "tracefs is not mounted",
                ERROR,
                "mount -t tracefs nodev /sys/kernel/tracing, or --fix",
                ("mount", "tracefs", "/sys/kernel/tracing"),
            )
        )
        return found
    if request.mode == "tracepoints":
        _, missing = perf.existing(tracefs)
        for t in missing:
            if t.required:
                found.append(
                    Finding(
                        f"the kernel lacks the tracepoint {t.name}",
                        ERROR,
                        "use a kernel with CONFIG_FTRACE_SYSCALLS=y",
                    )
                )
        optional = [t.name for t in missing if not t.required]
        if optional:
            found.append(Finding(f"tracepoints this kernel lacks: {', '.join(optional)}", INFO))
    if probes.choose_script(tracefs) == probes.LEGACY_SCRIPT:
        found.append(
            Finding("the kernel lacks the sock:* message tracepoints (6.3): function probes instead", INFO)
        )
    return found


def _lockdown(machine: Machine) -> list[Finding]:
    state = machine.read("sys/kernel/security/lockdown") or ""
    match = re.search(r"\[(\w+)\]", state)
    level = match.group(1) if match else "none"
    tracefs = machine.tracefs()
    if level == "confidentiality":
        return [
            Finding(
                "kernel lockdown is confidentiality: it refuses probes that read kernel memory",
                ERROR,
                "boot with lockdown=integrity or without lockdown (often: Secure Boot off)",
            )
        ]
    if level == "integrity" and tracefs and probes.choose_script(tracefs) == probes.LEGACY_SCRIPT:
        return [
            Finding(
                "kernel lockdown is integrity: it refuses function probes, and this kernel needs them",
                ERROR,
                "use a kernel from 6.3, or boot without lockdown (often: Secure Boot off)",
            )
        ]
    if level == "integrity":
        return [Finding("kernel lockdown is integrity: function probes are refused, tracepoints work", INFO)]
    return []


def _clocks(machine: Machine) -> list[Finding]:
    for line in (machine.read("proc/self/timens_offsets") or "").splitlines():
        name, seconds, ns = line.split()
        if int(seconds) or int(ns):
            return [
                Finding(
                    f"this process is in a time namespace ({name} {seconds}.{ns:0>9} s), but the kernel's records are not",
                    ERROR,
                    "run it in the initial one: nsenter --target 1 --time nsight-record ...",
                )
            ]
    source = machine.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source and source != "tsc":
        return [
            Finding(
                f"clocksource is {source}, not tsc: clocks are mapped by bracketed readings, which are less exact",
                WARNING,
                "if the TSC is stable here: echo tsc into clocksource0/current_clocksource, or boot with clocksource=tsc",
            )
        ]
    return []


def estimated_bytes(mode: str, n_cpus: int, duration: float | None) -> int:
    """Size of a recording on a busy machine, for ``duration`` seconds (one minute if it is open-ended)."""
    return int(_BYTES_PER_CORE_SECOND[mode] * n_cpus * (60 if duration is None else duration))


def _disk(machine: Machine, request: Request) -> list[Finding]:
    directory = request.capture_parent
    while not os.path.exists(directory) and directory != directory.parent:  # noqa: PTH110 # never raises
        directory = directory.parent
    s = os.statvfs(directory)
    if s.f_flag & os.ST_RDONLY:
        return [
            Finding(
                f"{directory}: read-only file system",
                ERROR,
                "choose a writable place with -o DIR",
                exit_code=EXIT_IO,
            )
        ]
    if not os.access(directory, os.W_OK | os.X_OK):
        return [
            Finding(
                f"{directory}: not writable", ERROR, "choose a writable place with -o DIR", exit_code=EXIT_IO
            )
        ]
    free = s.f_bavail * s.f_frsize
    if free < DISK_MINIMUM:
        return [
            Finding(
                f"{directory}: {human_bytes(free)} free, a recording needs {human_bytes(DISK_MINIMUM)}",
                ERROR,
                "free disk space, or choose another place with -o DIR",
                exit_code=EXIT_IO,
            )
        ]
    needed = estimated_bytes(request.mode, machine.n_cpus, request.duration)
    if free < needed:
        return [
            Finding(
                f"{directory}: {human_bytes(free)} free, a busy machine may record {human_bytes(needed)}",
                WARNING,
                "record for a shorter time (-d), or choose another place with -o DIR; recording stops before the disk is full",
            )
        ]
    return []


def _nics(request: Request) -> list[Finding]:
    found = []
    for nic in request.nics:
        if nic["name"] == "lo" or (request.chosen_iface and nic["name"] != request.chosen_iface):
            continue
        stamping = nic.get("timestamping") or {}
        if not stamping.get("hardware_rx"):
            if request.chosen_iface or nic.get("bus"):
                found.append(
                    Finding(
                        f"{nic['name']}: no hardware receive timestamps (driver {nic.get('driver') or 'unknown'})",
                        INFO,
                        "lifetimes begin in the receive softirq, without the time from wire to driver",
                    )
                )
        elif stamping.get("rx_filter") == 0 and stamping.get("rx_filters", 0) & 2:
            found.append(
                Finding(
                    f"{nic['name']}: hardware receive timestamps are off (rx_filter=none)",
                    WARNING,
                    f"hwstamp_ctl -i {nic['name']} -r 1, or --fix",
                    ("hwtstamp", nic["name"], str(nic["netns"])),
                )
            )
    return found
