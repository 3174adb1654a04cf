# SPDX-License-Identifier: GPL-2.0-only
"""What will be recorded: options with their names resolved, and their entries in the manifest."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import __version__, cgroups, collect, host, intervals, netns, nic, preflight, probes
from .errors import RecordError, Usage
from .intervals import Interval
from .machine import Machine
from .netns import Netns


@dataclass
class Plan:
    """A request whose names are resolved."""

    mode: str
    duration: float | None
    filters: probes.Filters
    netns: Netns
    iface: str | None
    nics: list[dict[str, Any]]
    snaplen: int | None = None
    lwip: str | None = None
    cpus: Sequence[int] | None = None
    command: list[str] = field(default_factory=list)
    recorder: str = "bpftrace"  # or bpf
    syscalls: str = "waits"  # recorder bpf: a key of collect.SYSCALLS
    server_only: bool = False  # recorder bpf: leave out messages of the server's clients on this machine
    compress: bool = False  # recorder bpf
    acknowledgements: Path | None = None  # recorder bpf: record the sockets of this control group
    counters: Sequence[str] = ()  # recorder bpf: some of collect.COUNTERS
    intervals: Sequence[Interval] = ()  # recorder bpf
    umask: int = 0o022  # for the command: the recorder's own files are private

    def of_collector(self) -> dict[str, Any]:
        """Options of ``collect.argv`` that the plan contains."""
        names = ("syscalls", "server_only", "compress", "acknowledgements", "counters")
        return {name: getattr(self, name) for name in names}


def _acknowledgements(args: argparse.Namespace, recorder: str) -> Path | None:
    """The control group whose sockets' acknowledgements are recorded; None: none are. Raises Usage."""
    if not args.acknowledgements:
        return None
    if recorder != "bpf" or args.flight:
        raise Usage(
            "--acknowledgements needs recorder bpf, and does not go with --flight",
            "nsight-record --preflight says what recorder bpf needs; record for a while with -d",
        )
    found = cgroups.directory(args.cgroup) if args.cgroup else cgroups.root()
    if not found:
        raise Usage("--acknowledgements: cgroup version 2 is not mounted", "mount -t cgroup2 none DIR")
    return found


def _counters(args: argparse.Namespace, recorder: str, mode: str, root: Path) -> list[str]:
    """Names of performance counters. Raises Usage."""
    names = list(dict.fromkeys((args.counters or "").split(","))) if args.counters else []
    if names and (recorder != "bpf" or mode != "tracepoints" or args.flight):
        raise Usage(
            "--counters needs recorder bpf and mode tracepoints, and does not go with --flight",
            "nsight-record --preflight says what recorder bpf needs; record for a while with -d",
        )
    if unknown := [name for name in names if name not in collect.COUNTERS]:
        raise Usage(f"--counters: no counter {unknown[0]!r}", f"choose from {', '.join(collect.COUNTERS)}")
    if len(names) > collect.MOST_COUNTERS:
        raise Usage(
            f"--counters: more than {collect.MOST_COUNTERS}",
            "make another recording for the others: a core counts only a few at a time",
        )
    if set(names) & set(collect.HARDWARE_COUNTERS) and not host.has_pmu(root):
        raise Usage(
            "--counters: this machine has no performance counters (PMU), like most virtual machines",
            "leave out --counters; page-faults and cpu-clock are counted by the kernel",
        )
    return names


def _nics(ns: netns.Netns, chosen: bool) -> list[dict[str, Any]]:
    """Interfaces of the chosen namespace; if none is chosen, also those of all named ones."""
    spaces = [ns] if chosen else [ns, *(n for n in netns.named() if n.inum != ns.inum)]
    found: list[dict[str, Any]] = []
    for space in spaces:
        if space.path is None:
            continue
        try:
            nics = netns.call_in(space, nic.describe_all)
        except (OSError, RecordError):
            continue  # not permitted without root, which preflight reports
        found += [{**n, "netns": space.inum, "netns_name": space.label} for n in nics]
    return found


def _is_process(pid: int) -> None:
    """Raises Usage for a thread: it also has a directory in /proc, but no message belongs to a thread alone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        raise Usage(f"--pid {pid}: no such process") from None
    of = next(line.split()[1] for line in status.splitlines() if line.startswith("Tgid:"))
    if int(of) != pid:
        raise Usage(f"--pid {pid}: a thread of process {of}", f"give --pid {of}")


def make_plan(args: argparse.Namespace, machine: Machine, umask: int) -> Plan:
    """Resolve names to numbers. Raises Usage for names that do not exist."""
    ns = netns.find(args.netns) if args.netns else netns.current()
    nics = _nics(ns, bool(args.netns))
    ifindex = 0
    if args.iface:
        here = [n for n in nics if n["name"] == args.iface and n["netns"] == ns.inum]
        if not here:
            raise Usage(
                f"--iface {args.iface}: no such interface", "ip link lists them; another namespace: --netns"
            )
        ifindex = here[0]["ifindex"]
    if args.pid:
        _is_process(args.pid)
    if args.command and not shutil.which(args.command[0]):
        raise Usage(f"{args.command[0]}: not found, or not executable", "give a program after --")
    if args.payload and ns.path is None:
        raise Usage(f"--netns {args.netns}: no process or name refers to it, so --payload cannot enter it")
    if args.lwip == probes.SYSTEMS_LWIP:
        args.lwip = probes.installed_lwip()
    if args.lwip and not Path(args.lwip).is_file():
        raise Usage(f"--lwip {args.lwip}: no such file", "give the library or program that has lwIP's code")
    recorder = preflight.resolve_recorder(args.recorder, machine, bool(args.lwip))
    if args.syscalls and recorder != "bpf":
        raise Usage("--syscalls needs recorder bpf", "leave out --syscalls: recorder bpftrace records all")
    if args.interval and recorder != "bpf":
        raise Usage("--interval needs recorder bpf", "nsight-record --preflight says what it needs")
    if args.interval and args.flight:
        raise Usage("--interval does not go with --flight", "record for a while with -d")
    if args.compress and recorder != "bpf":
        raise Usage(
            "--compress needs recorder bpf", "leave out --compress: perf and bpftrace write as they do"
        )
    mode = preflight.resolve_mode(args.mode, machine)
    direction = {(True, False): 1, (False, True): 2}.get((args.rx, args.tx), 0)
    filters = probes.Filters(
        port=args.port or 0,
        pid=args.pid or 0,
        # A cgroup's id is the inode number of its directory (kernfs, 64 bit).
        cgroup_id=cgroups.directory(args.cgroup).stat().st_ino if args.cgroup else 0,
        ifindex=ifindex,
        netns_inum=ns.inum if args.netns else 0,
        direction=direction,
    )
    return Plan(
        mode=mode,
        duration=args.duration,
        filters=filters,
        netns=ns,
        iface=args.iface,
        nics=nics,
        snaplen=args.payload,
        lwip=probes.library(args.lwip) if args.lwip else None,
        cpus=args.cpus,
        command=args.command,
        recorder=recorder,
        syscalls=args.syscalls or "waits",
        server_only=recorder == "bpf" and bool(args.port) and not args.clients and collect.listens(args.port),
        compress=args.compress,
        acknowledgements=_acknowledgements(args, recorder),
        counters=_counters(args, recorder, mode, machine.root),
        intervals=intervals.parse(args.interval or ()),
        umask=umask,
    )


def describe(plan: Plan, argv: Sequence[str], machine: Machine) -> dict[str, Any]:
    """The part of the manifest that is known before anything starts."""
    f = plan.filters
    return {
        "recorder": __version__,
        "mode": plan.mode,
        "host": host.describe(machine.root),
        "core_khz": host.core_khz(machine.root),
        "page_fault_ns": host.page_fault_ns(),
        "nics": plan.nics,
        "command": list(argv),
        "filters": {
            "port": f.port or None,
            "pid": f.pid or None,
            "cgroup": f.cgroup_id or None,
            "iface": plan.iface,
            "ifindex": f.ifindex or None,
            "netns": f.netns_inum or None,
            "rx": f.direction in (0, 1),
            "tx": f.direction in (0, 2),
            "server_only": plan.server_only,
        },
        "syscall_names": host.syscall_names(),
        "intervals": intervals.told(plan.intervals),
        "recorder_pid": os.getpid(),
        "losses": [],
        "changed": [],
    }
