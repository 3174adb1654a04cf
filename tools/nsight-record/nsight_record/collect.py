# SPDX-License-Identifier: GPL-2.0-only
"""nsight-collect's command line: the BPF programs that timestamp messages and record what the cores do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import programs
from .probes import Counts, Filters

PROGRAM = "nsight-collect"
DIRECTORY = "records"
STARTED = b"recording\n"
#: Number and name of a drop reason.
REASON = re.compile(rb"^reason (\d+) (\w+)$", re.MULTILINE)
#: Maximum bytes of its log up to that line: mostly names of drop reasons.
_MOST_BEFORE = 1 << 16

#: Ring of each core: with two million records a second of 16 to 64 bytes it lasts for 150 ms.
RING_KB = 8192
_RING_MEMORY_SHARE = 32
_LEAST_RING_KB = 256

#: Which system calls are recorded: those in which threads wait, those of processes with messages, all, none.
SYSCALLS: dict[str, list[str]] = {
    "waits": ["--waits"],
    "messages": [],
    "all": ["--all-syscalls"],
    "none": ["--no-syscalls"],
}

#: Performance counters, named as in perf. The first ones need a PMU; the kernel counts page-faults and cpu-clock itself.
HARDWARE_COUNTERS = (
    "cycles", "instructions", "stalled-cycles-frontend", "stalled-cycles-backend", "branch-misses", "cache-misses",
    "LLC-load-misses", "dTLB-load-misses",
)  # fmt: skip
COUNTERS = (*HARDWARE_COUNTERS, "page-faults", "cpu-clock")
MOST_COUNTERS = 5
USUAL_COUNTERS = "cycles,instructions,stalled-cycles-frontend,cache-misses"

# As tools/bpf/record.h has them: a message's type is this | timestamp << 2 | flags.
_MESSAGE = 0x80
_LETTERS = "AHRSXTO"


def find(path: str | None = None) -> str | None:
    """The program: from this package, else from ``path``."""
    return programs.own_or_on_path(PROGRAM, path)


def ring_kb(n_cpus: int, mem_available: int) -> int:
    """KiB of each core's ring; all rings together take at most 1/32 of the available memory."""
    size = RING_KB
    while size > _LEAST_RING_KB and size * 1024 * n_cpus > mem_available // _RING_MEMORY_SHARE:
        size //= 2
    return size


def argv(
    program: str,
    filters: Filters,
    output: Path,
    ring: int,
    *,
    activity: bool,
    hardware_stamps: bool,
    syscalls: str = "waits",
    server_only: bool = False,
    compress: bool = False,
    acknowledgements: Path | None = None,
    counters: Sequence[str] = (),
    more: Sequence[str] = (),
) -> list[str]:
    """The command. ``activity``: also record what the cores do (Intel PT shows that better). ``syscalls``:
    one of SYSCALLS. ``server_only``: the port is a server's, and its clients on this machine are left out.
    ``acknowledgements``: for the sockets of this control group. ``counters``: some of COUNTERS. ``more``:
    further options."""
    command = [program, "--ring-kb", str(ring), *more, *SYSCALLS[syscalls]]
    for option, value in (
        ("--port", filters.port),
        ("--pid", filters.pid),
        ("--cgroup", filters.cgroup_id),
        ("--ifindex", filters.ifindex),
        ("--netns", filters.netns_inum),
    ):
        command += [option, str(value)] if value else []
    command += {1: ["--rx"], 2: ["--tx"]}.get(filters.direction, [])
    command += [] if activity else ["--messages"]
    command += ["--hardware-timestamps"] if hardware_stamps else []
    command += ["--server"] if server_only else []
    command += ["--compress"] if compress else []
    command += ["--acknowledgements", str(acknowledgements)] if acknowledgements else []
    for name in counters:
        command += ["--counter", name]
    return [*command, str(output)]


def listens(port: int, proc: Path = Path("/proc")) -> bool:
    """Whether a socket on this machine, in any network namespace, serves the port."""
    seen = set()
    for process in proc.glob("[0-9]*"):
        try:
            namespace = (process / "ns/net").stat().st_ino
            if namespace in seen:
                continue
            seen.add(namespace)
            for name in ("tcp", "tcp6", "udp", "udp6"):
                with open(process / "net" / name, "rb") as file:
                    next(file, b"")
                    for line in file:
                        _, local, peer, state, *_ = line.split(maxsplit=4)
                        unconnected = state == b"0A" or (name.startswith("udp") and peer.endswith(b":0000"))
                        if unconnected and int(local.rpartition(b":")[2], 16) == port:
                            return True
        except (OSError, ValueError):
            continue  # it has ended, or this kernel has no IPv6
    return False


def has_started(log: Path) -> bool:
    """Whether every program is attached."""
    try:
        with open(log, "rb") as f:
            return STARTED in f.read(_MOST_BEFORE)
    except OSError:
        return False


def count(log: Path) -> tuple[Counts, int, int]:
    """What the programs produced, from the JSON at the end of ``log``: messages by letter, records, and those lost.

    If it is missing (nsight-collect was killed), nothing is known here; the files themselves hold the counts
    of their last whole second.
    """
    counts = Counts({}, {}, 0, False)
    records = lost = 0
    try:
        text = log.read_text(errors="replace")
        cores: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
        for core in cores.values():
            for key, (produced, dropped, written) in core["types"].items():
                records += produced
                lost += dropped + (produced - dropped - written)
                if (kind := int(key)) >= _MESSAGE:
                    letter = _LETTERS[(kind - _MESSAGE) >> 2]
                    counts.produced[letter] = counts.produced.get(letter, 0) + produced
                    counts.written[letter] = counts.written.get(letter, 0) + written
        counts.ended = True
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        pass
    return counts, records, lost


def drop_reasons(log: Path) -> dict[str, str]:
    """Names of this kernel's drop reasons, by number."""
    try:
        with open(log, "rb") as f:
            return {m[1].decode(): m[2].decode() for m in REASON.finditer(f.read(_MOST_BEFORE))}
    except OSError:
        return {}


def counters(log: Path) -> tuple[list[str], dict[str, str]]:
    """Names of the performance counters by their number in records ('': the counter is missing), and why each
    missing one is missing."""
    try:
        with open(log, "rb") as f:
            text = f.read(_MOST_BEFORE).decode(errors="replace")
    except OSError:
        return [], {}
    there = {int(number): name for number, name in re.findall(r"^counter (\d) ([\w-]+)$", text, re.MULTILINE)}
    missing = dict(re.findall(r"^no counter ([\w-]+): (.*)$", text, re.MULTILINE))
    return [there.get(n, "") for n in range(max(there, default=-1) + 1)], missing


def missed(log: Path) -> dict[str, int]:
    """Runs that the kernel skipped, by program: the same program was already under way on that core."""
    try:
        found = re.findall(r"^missed (\w+) (\d+)$", log.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return {}
    return {name: int(n) for name, n in found}


def unreserved(log: Path) -> str:
    """Why no disk space was reserved for the last counts; '': it was."""
    try:
        found = re.search(r"^unreserved: (.+)$", log.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1] if found else ""


def not_asked(log: Path) -> int:
    """Existing connections for which acknowledgement timestamps could not be requested."""
    try:
        found = re.search(
            r"^connections that were there: \d+ asked, (\d+) not$", log.read_text(errors="replace"), re.M
        )
    except OSError:
        return 0
    return int(found[1]) if found else 0


def write_interrupts(directory: Path) -> None:
    """``irqs.tsv``: what the numbers of interrupts mean; records have only the numbers."""
    lines = []
    for entry in sorted(Path("/sys/kernel/irq").glob("[0-9]*")):
        try:
            name = (entry / "actions").read_text().strip()
        except OSError:
            continue
        if name:
            lines.append(f"{entry.name}\t{''.join(c if c.isprintable() else '?' for c in name)}\n")
    try:
        fd = os.open(directory / "irqs.tsv", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(fd, "w") as f:
            f.writelines(lines)
    except OSError:
        pass  # the interrupts keep their numbers
