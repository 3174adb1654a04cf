# SPDX-License-Identifier: GPL-2.0-only
"""The nsight-record command: options, preflight, one recording, summary."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__, collect, flight, netns, nic, ownership, payload, preflight, probes
from .capture import Capture, default_name
from .errors import EXIT_INTERRUPTED, EXIT_IO, EXIT_OK, Missing, OutputError, RecordError, Usage
from .preflight import ERROR, Finding, Machine
from .progress import Progress, human_bytes
from .recording import Plan, Recording, describe
from .supervisor import Interrupted, Signals
from .system import Changes, restore_left

_EPILOG = """\
exit codes:
  0    recorded; with --restore: all is as it was
  2    wrong usage
  4    something this machine lacks (nsight-record --preflight lists it)
  5    the capture could not be written, or a recording program died; what was
       recorded is kept; with --restore: a setting could not be put back
  130  stopped by Ctrl-C or SIGTERM; what was recorded is kept

examples:
  nsight-record -d 5 --port 11211
  nsight-record --netns web --iface eth0 --rx -- ./load-test
  nsight-record --flight --trigger latency=2ms --port 11211
  nsight-record --preflight
  nsight-record --restore
"""


#: Modes by their former names.
_GRADES = {"auto": "auto", "pt": "intel-pt", "trace": "tracepoints"}


class _Grade(argparse.Action):
    """``--grade``, the former name of ``--mode``: taken for one release, with a warning."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        mode = _GRADES[values]
        print(
            f"{parser.prog}: warning: {option} {values} is called --mode {mode} now, and will go",
            file=sys.stderr,
        )
        namespace.mode = mode


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400 * 7:
        raise ValueError
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 < value < 65536:
        raise ValueError
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError
    return value


def _cpu_list(text: str) -> list[int]:
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < 8192:
            raise ValueError
        cpus.extend(range(low, high + 1))
    return cpus


def _size(text: str) -> int:
    m = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT])B?", text)
    if not m:
        raise ValueError
    return int(float(m[1]) * {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[m[2]])


def _per_cent(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100:
        raise ValueError
    return value


_seconds.__name__, _port.__name__ = "number of seconds", "port"
_positive.__name__, _cpu_list.__name__ = "number", "list of cores, such as 0,2-3"
_size.__name__, _per_cent.__name__ = "size, such as 512M or 2G", "percentage"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="nsight-record",
        usage="nsight-record [OPTIONS] [-- COMMAND ...]",
        description="Record what every core does and when network messages reach the host, the socket and the "
        "application, in one capture directory for nsight-report. Needs root.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "-d", "--duration", type=_seconds, metavar="SECONDS", help="stop after SECONDS (default: at Ctrl-C)"
    )
    p.add_argument(
        "-o", "--output", metavar="DIR", help="capture directory (default: nsight-HOST-TIME.nsight)"
    )
    p.add_argument("-f", "--force", action="store_true", help="replace DIR if it is a capture")
    p.add_argument(
        "--port", type=_port, metavar="N", help="only messages with this TCP or UDP port, on either side"
    )
    p.add_argument(
        "--clients",
        action="store_true",
        help="where the port is that of a server on this machine: also what its clients here send and read (default: "
        "only the server's messages; recorder bpftrace: both)",
    )
    p.add_argument("--pid", type=_positive, metavar="PID", help="only messages read and sent by this process")
    p.add_argument("--cgroup", metavar="PATH", help="only sockets of this cgroup (version 2)")
    p.add_argument("--iface", metavar="NAME", help="only packets of this interface")
    p.add_argument(
        "--netns", metavar="NS", help="only this network namespace: name, process in it, or inode number"
    )
    p.add_argument("--rx", action="store_true", help="received messages only")
    p.add_argument("--tx", action="store_true", help="sent messages only")
    p.add_argument(
        "--mode",
        choices=("auto", "intel-pt", "tracepoints"),
        default="auto",
        help="intel-pt: every function call; tracepoints: contexts only (default: auto, intel-pt where there is Intel PT)",
    )
    p.add_argument(
        "--grade",
        choices=_GRADES,
        dest="mode",
        action=_Grade,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    p.add_argument(
        "--recorder",
        choices=("auto", "bpf", "bpftrace"),
        default="auto",
        help="bpf: programs of NSight's own, which cost a server least; bpftrace: its scripts, and perf, which need no "
        "program to be built (default: auto, bpf where it is built and the kernel can)",
    )
    p.add_argument(
        "--syscalls",
        choices=tuple(collect.SYSCALLS),
        help="system calls that recorder bpf records: waits, those in which threads of processes that messages reach lost "
        "their core; messages, all of these processes, which costs every system call of the machine; all; none (default: "
        "waits; recorder bpftrace records all)",
    )
    p.add_argument(
        "--compress",
        action="store_true",
        help="compress the records of recorder bpf by zstd, to two fifths of the bytes or less: more work for the recorder",
    )
    p.add_argument(
        "--payload",
        nargs="?",
        type=_positive,
        const=payload.DEFAULT_SNAPLEN,
        metavar="BYTES",
        help="also store the first BYTES of every packet with tcpdump, for message framing. This stores your "
        f"users' data (default: no; without a number {payload.DEFAULT_SNAPLEN})",
    )
    p.add_argument(
        "--lwip",
        nargs="?",
        const=probes.SYSTEMS_LWIP,
        metavar="LIBRARY",
        help="also messages of programs whose TCP is lwIP, a library of the process: its file, or the program "
        f"it is linked into (default: no; without a name {probes.SYSTEMS_LWIP}, the system's liblwip.so.N)",
    )
    p.add_argument("--cpus", type=_cpu_list, metavar="LIST", help="cores on which the recording programs run")
    p.add_argument("--fix", action="store_true", help="change what preflight can change; put back afterwards")
    p.add_argument(
        "--restore",
        action="store_true",
        help="put back what a killed recorder changed with --fix; record nothing",
    )
    p.add_argument(
        "--preflight", action="store_true", help="print what is missing and how to get it; record nothing"
    )
    _add_flight(p)
    p.add_argument("-q", "--quiet", action="store_true", help="print warnings and errors only")
    p.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    p.add_argument("command", nargs="*", metavar="COMMAND", help="record until this program ends")
    return p


def _add_flight(p: argparse.ArgumentParser) -> None:
    default = flight.Options()
    g = p.add_argument_group(
        "flight recorder", "Keep the newest in memory, and make a capture of what was around a trigger."
    )
    g.add_argument("--flight", action="store_true", help="DIR then holds a capture for each window")
    g.add_argument(
        "--trigger",
        action="append",
        metavar="WHAT",
        help="latency=2ms (a message took longer), latency=p99.9 (than its service's percentile), drops=100/s, "
        "retransmissions=10/s; SIGUSR1 always is one. Can be given several times",
    )
    g.add_argument(
        "--before", type=_seconds, default=default.before, metavar="SECONDS", help="(default %(default)s)"
    )
    g.add_argument(
        "--after",
        type=_seconds,
        metavar="SECONDS",
        help=f"(default {flight.AFTER_S['tracepoints']}; {flight.AFTER_S['intel-pt']} with Intel PT)",
    )
    g.add_argument(
        "--memory",
        type=_size,
        metavar="SIZE",
        help="of all cores (default: 64M a core, at most 1/32 of what is free)",
    )
    g.add_argument(
        "--windows-per-hour",
        type=_positive,
        default=default.per_hour,
        metavar="N",
        help="(default %(default)s)",
    )
    g.add_argument(
        "--most-disk",
        type=_size,
        default="2G",
        metavar="SIZE",
        help="of all windows (default %(default)s)",
    )
    g.add_argument(
        "--most-cpu",
        type=_per_cent,
        default=default.most_cpu,
        metavar="PERCENT",
        help="of all cores, for the BPF programs: above it system calls are left out, then all for a minute "
        "(default %(default)s, 0 no limit)",
    )
    g.add_argument(
        "--write-window", action="store_true", help="have the flight recorders that run here write one now"
    )


def _flight_options(args: argparse.Namespace) -> flight.Options:
    """Raises Usage."""
    wrong = [f"--{name}" for name in ("payload", "lwip", "fix", "force") if getattr(args, name)]
    wrong += ["COMMAND"] if args.command else []
    if wrong:
        raise Usage(f"--flight: not with {', '.join(wrong)}")
    if args.recorder == "bpftrace":
        raise Usage("--flight needs --recorder bpf", "leave out --recorder")
    if args.mode != "intel-pt":
        args.mode = "tracepoints"
    if args.after is None:
        args.after = flight.AFTER_S[args.mode]
    if args.before > 600 or args.after > 60:
        raise Usage("--before is at most 600 s, --after 60 s")
    options = flight.Options(
        before=args.before, after=args.after, per_hour=args.windows_per_hour, most_disk=args.most_disk,
        most_cpu=args.most_cpu, memory=args.memory,
    )  # fmt: skip
    for text in args.trigger or ():
        options.add_trigger(text)
    if options.per_hour > 3600:
        raise Usage("--windows-per-hour is at most 3600")
    return options


def _cgroup_id(path: str) -> int:
    """A cgroup's id is the inode number of its directory (kernfs, 64 bit)."""
    directory = Path(path)
    if not directory.is_absolute() or not directory.exists():
        directory = Path("/sys/fs/cgroup") / path.lstrip("/")
    if not (directory / "cgroup.procs").exists():
        raise Usage(f"--cgroup {path}: no such cgroup", "give a directory below /sys/fs/cgroup")
    if not (directory / "cgroup.controllers").exists():
        raise Usage(
            f"--cgroup {path}: a cgroup of version 1, which has no socket filter",
            "filter with --pid or --port",
        )
    return directory.stat().st_ino


def _nics(ns: netns.Netns, chosen: bool) -> list[dict[str, Any]]:
    """Interfaces of the chosen namespace; when none is chosen, of all named ones as well."""
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


def make_plan(args: argparse.Namespace, machine: Machine, umask: int) -> Plan:
    """Resolve names to numbers. Raises Usage for what does not exist."""
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
    if args.pid and not Path(f"/proc/{args.pid}").exists():
        raise Usage(f"--pid {args.pid}: no such process")
    if args.payload and ns.path is None:
        raise Usage(f"--netns {args.netns}: no process or name leads to it, --payload cannot enter it")
    if args.lwip == probes.SYSTEMS_LWIP:
        args.lwip = probes.installed_lwip()
    if args.lwip and not Path(args.lwip).is_file():
        raise Usage(f"--lwip {args.lwip}: no such file", "give the library or program that has lwIP's code")
    recorder = preflight.resolve_recorder(args.recorder, machine, bool(args.lwip))
    if args.syscalls and recorder != "bpf":
        raise Usage("--syscalls needs recorder bpf", "leave out --syscalls: recorder bpftrace records all")
    if args.compress and recorder != "bpf":
        raise Usage(
            "--compress needs recorder bpf", "leave out --compress: perf and bpftrace write as they do"
        )
    direction = {(True, False): 1, (False, True): 2}.get((args.rx, args.tx), 0)
    filters = probes.Filters(
        port=args.port or 0,
        pid=args.pid or 0,
        cgroup_id=_cgroup_id(args.cgroup) if args.cgroup else 0,
        ifindex=ifindex,
        netns_inum=ns.inum if args.netns else 0,
        direction=direction,
    )
    return Plan(
        mode=preflight.resolve_mode(args.mode, machine),
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
        umask=umask,
    )


def _print_findings(findings: Sequence[Finding], stream: Any) -> None:
    for f in findings:
        print(f"{f.severity}: {f.what}", file=stream)
        if f.hint:
            print(f"  hint: {f.hint}", file=stream)


def _refuse(findings: Sequence[Finding]) -> int:
    errors = [f for f in findings if f.severity == ERROR]
    _print_findings(errors, sys.stderr)
    return errors[0].exit_code


def _record(
    args: argparse.Namespace, argv: Sequence[str], machine: Machine, progress: Progress, umask: int
) -> int:
    options = _flight_options(args) if args.flight else None
    if options:
        args.recorder = "bpf"
    plan = make_plan(args, machine, umask)
    if options and args.output is None:
        args.output = f"nsight-flight-{socket.gethostname()}"
    output = Path(args.output or default_name(socket.gethostname(), time.strftime("%Y%m%d-%H%M%S")))
    request = preflight.Request(
        mode=plan.mode,
        capture_parent=output.absolute().parent,
        duration=args.duration,
        filters=plan.filters,
        nics=plan.nics,
        chosen_iface=args.iface,
        payload=args.payload is not None,
        recorder=plan.recorder,
    )
    findings = preflight.check(machine, request)
    errors = [f for f in findings if f.severity == ERROR]
    if args.preflight:
        _print_findings(findings, sys.stdout)
        print(f"mode {plan.mode}: {'not ready' if errors else 'ready to record'}")
        return errors[0].exit_code if errors else EXIT_OK
    if [f for f in errors if not (args.fix and f.fix)]:
        return _refuse(errors)

    user = ownership.invoking_user(os.environ)
    if options:
        for f in findings:
            if f.severity == preflight.WARNING:
                progress.warn(f"{f.what}; {f.hint}" if f.hint else f.what)
        return _fly(output, plan, options, machine, progress, user, argv)
    with Signals() as signals, Capture(output, force=args.force, user=user) as capture:
        capture.manifest.update(describe(plan, argv, machine))
        changes = Changes(capture, machine.root)
        recording = None
        try:
            capture.save()
            if args.fix:
                findings = _fix(changes, plan, machine, request, progress)
                if any(f.severity == ERROR for f in findings):
                    return _refuse(findings)
            for f in findings:
                if f.severity == preflight.WARNING:
                    progress.warn(f"{f.what}; {f.hint}" if f.hint else f.what)
            capture.manifest["preflight"] = [
                {"what": f.what, "severity": f.severity, "hint": f.hint} for f in findings
            ]
            recording = Recording(capture, plan, machine, progress, signals)
            stopped_by = recording.run()
        finally:
            _put_back(changes, capture, progress)
            progress.clear()
        _summary(capture, recording, progress)
        return _exit_code(capture, stopped_by)


def _fly(
    output: Path, plan: Plan, options: flight.Options, machine: Machine, progress: Progress, user: ownership.User | None,
    argv: Sequence[str],
) -> int:  # fmt: skip
    """Run the flight recorder to its end."""
    directory, whole = flight.Directory(output, user), False
    try:
        with Signals() as signals:
            run = flight.Flight(directory, plan, options, machine, progress, signals, user, argv)
            try:
                stopped_by = run.run()
            except Interrupted:
                return EXIT_INTERRUPTED
            finally:
                progress.clear()
        whole = not run.totals.problems
    finally:
        directory.close(keep_logs=not whole)
    totals = run.totals
    for text in totals.problems:
        progress.warn(f"cut short: {text}")
    refused = {"an hour": totals.end.get("over_hour", 0), "in all (disk)": totals.end.get("over_disk", 0)}
    for limit, n in refused.items():
        if n:
            progress.warn(f"{n} triggers beyond the limit of windows {limit} made none")
    progress.say(
        f"{totals.windows} windows, {human_bytes(totals.bytes)}, of {totals.end.get('triggers', 0)} triggers; "
        f"{totals.end.get('records', 0)} records went through memory"
    )
    if totals.windows:
        progress.say(f"next: nsight-report {output}/WINDOW.nsight")
    if stopped_by.startswith("error") or totals.problems:
        return EXIT_IO
    return EXIT_INTERRUPTED if stopped_by == "signal" else EXIT_OK


def _write_window(machine: Machine) -> int:
    """Ask the flight recorders for one."""
    if machine.euid != 0:
        raise Missing("not root: flight recorders are root's", "run it with sudo")
    for pid in flight.ask_all(machine.root):
        print(f"asked: nsight-record {pid}")
    return EXIT_OK


def _fix(
    changes: Changes, plan: Plan, machine: Machine, request: preflight.Request, progress: Progress
) -> list[Finding]:
    """Change what is to be changed, or share it with whom did; what preflight finds then."""
    for left in changes.join({(n["netns"], n["name"]) for n in plan.nics}):
        progress.warn(left)
    # Only now: what another recorder had changed when preflight looked it may have put back since.
    for finding in preflight.check(machine, request):
        if finding.fix:
            progress.say(f"changing for this recording: {finding.what}")
            changes.apply(finding.fix, plan.netns)
    return preflight.check(machine, request)


def _put_back(changes: Changes, capture: Capture, progress: Progress) -> None:
    """Leave the machine as it was, and the capture to whom it belongs."""
    for failure in changes.restore():
        progress.warn(f"could not be put back: {failure}")
    try:
        if capture.manifest["changed"]:
            capture.save()
        capture.hand_over()
    except OutputError as e:
        progress.warn(f"{e}; {e.hint}")


def _restore(machine: Machine) -> int:
    """Put back what killed recorders left, and say what."""
    if machine.euid != 0:
        raise Missing("not root: settings of the system cannot be put back", "run it with sudo")
    said = restore_left(machine.root)
    for text in said.restored:
        print(f"restored: {text}")
    for text in said.left_alone:
        print(f"left alone: {text}")
    for text in said.failed:
        print(f"error: not restored: {text}", file=sys.stderr)
    if said.failed:
        print("hint: put it back by hand", file=sys.stderr)
        return EXIT_IO
    if not said.restored:
        print("nothing to restore")
    return EXIT_OK


def _exit_code(capture: Capture, stopped_by: str) -> int:
    if stopped_by.startswith("error") or capture.manifest["cut"]:
        return EXIT_INTERRUPTED if stopped_by == "signal" and "start" not in capture.manifest else EXIT_IO
    return EXIT_INTERRUPTED if stopped_by == "signal" else EXIT_OK


def _summary(capture: Capture, recording: Recording, progress: Progress) -> None:
    m = capture.manifest
    if "start" not in m:
        progress.say(f"stopped before the recording began; logs are in {capture.path}")
        return
    if m["stopped_by"].startswith("error"):
        progress.warn(m["stopped_by"].removeprefix("error: "))
    for reason in m["cut"]:
        progress.warn(f"the capture is cut: {reason}")
    seconds = (m["stop"]["monotonic_ns"] - m["start"]["monotonic_ns"]) / 1e9
    counts = recording.counts
    events = sum(counts.written.values()) if counts else 0
    sizes = ", ".join(
        f"{name} {human_bytes(size)}" for name in ("records", "perf.data") if (size := capture.size(name))
    )
    progress.say(f"recorded {seconds:.1f} s: {events} message events, {sizes}")
    for loss in m["losses"]:
        progress.warn(f"{loss['tool']}: {loss['what']}: {loss['count']}")
    if not m["losses"]:
        progress.say("lost: nothing")
    if not events:
        progress.warn("no message was seen; are the filters right, and was there traffic?")
    progress.say(f"capture: {capture.path}\nnext:    nsight-report {capture.path}")


def main(argv: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Entry point; returns the exit code. ``machine``: where to look for programs, and at what; for tests."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    progress = Progress(quiet=args.quiet)
    machine = machine or Machine()
    umask = os.umask(ownership.PRIVATE_UMASK)
    try:
        if args.restore:
            return _restore(machine)
        if args.write_window:
            return _write_window(machine)
        return _record(args, ["nsight-record", *argv], machine, progress, umask)
    except RecordError as e:
        progress.clear()
        print(f"error: {e}", file=sys.stderr)
        if e.hint:
            print(f"hint: {e.hint}", file=sys.stderr)
        return e.exit_code
    except OSError as e:
        progress.clear()
        print(f"error: {e.filename or 'system'}: {e.strerror}", file=sys.stderr)
        return EXIT_IO
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        os.umask(umask)
