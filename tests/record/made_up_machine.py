# SPDX-License-Identifier: GPL-2.0-only
"""A file tree for preflight that looks like a machine on which nothing is missing."""

from pathlib import Path

from nsight_record import perf, probes
from nsight_record.machine import Machine

ALL_CAPABILITIES = "CapEff:\t000001ffffffffff"


def put(root: Path, path: str, text: str = "") -> None:
    """Write one file below ``root``."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def add_tracepoint(root: Path, name: str) -> None:
    """Make ``system/event`` exist."""
    put(root, f"sys/kernel/tracing/events/{name}/id", "1\n")


def build(root: Path, **options) -> Machine:
    """A machine without Intel PT that lacks nothing for mode tracepoints."""
    for t in perf.TRACEPOINTS:
        add_tracepoint(root, f"{t.system}/{t.event}")
    for name in probes.NEEDED_TRACEPOINTS:
        add_tracepoint(root, name)
    put(root, "sys/kernel/btf/vmlinux")
    put(root, "sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    put(root, "sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
    put(root, "proc/self/status", ALL_CAPABILITIES + "\n")
    put(root, "proc/sys/kernel/perf_event_mlock_kb", "516\n")
    put(root, "proc/meminfo", "MemAvailable:    8388608 kB\n")
    for program in ("perf", "bpftrace", "nsight-clock", "tcpdump"):
        put(root, f"bin/{program}")
        (root / "bin" / program).chmod(0o755)
    machine = {"root": root, "euid": 0, "path": str(root / "bin"), "callers_path": "", "n_cpus": 4}
    machine["run_version"] = lambda argv: (0, f"{argv[0]} 1.0")
    return Machine(**{**machine, **options})
