# SPDX-License-Identifier: GPL-2.0-only
"""The nsight-record command: options, preflight, one recording, summary."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import (
    flight,
    flight_directory,
    flight_options,
    ownership,
    preflight,
    tally,
)
from .arguments import parser
from .capture import Capture, default_name
from .errors import EXIT_INTERRUPTED, EXIT_IO, EXIT_OK, Missing, OutputError, RecordError, Usage
from .machine import ERROR, WARNING, Finding, Machine
from .plan import Plan, describe, make_plan
from .progress import Progress, human_bytes, print_error
from .recording import Recording
from .supervisor import Interrupted, Signals
from .system import Changes, restore_left


def _flight_options(args: argparse.Namespace) -> flight_options.Options:
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
        args.after = flight_options.AFTER_S[args.mode]
    if args.before > 600 or args.after > 60:
        raise Usage("--before is at most 600 s, --after 60 s")
    options = flight_options.Options(
        before=args.before, after=args.after, per_hour=args.windows_per_hour, most_disk=args.most_disk,
        most_cpu=args.most_cpu, memory=args.memory,
    )  # fmt: skip
    for text in args.trigger or ():
        options.add_trigger(text)
    if options.per_hour > 3600:
        raise Usage("--windows-per-hour is at most 3600")
    return options


def _refuse_flight_options(args: argparse.Namespace) -> None:
    """Raises Usage for options of the flight recorder without --flight: the recording would ignore them."""
    bare = parser().parse_args([])
    names = ("trigger", "before", "after", "memory", "windows_per_hour", "most_disk", "most_cpu")
    wrong = [f"--{n.replace('_', '-')}" for n in names if getattr(args, n) != getattr(bare, n)]
    if wrong:
        raise Usage(f"{', '.join(wrong)}: only with --flight", "add --flight, or leave them out")


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
    options = None
    if args.flight:
        options = _flight_options(args)
        args.recorder = "bpf"
    else:
        _refuse_flight_options(args)
    plan = make_plan(args, machine, umask)
    if options and args.output is None:
        args.output = f"nsight-flight-{socket.gethostname()}"
    output = Path(args.output or default_name(socket.gethostname(), time.strftime("%Y%m%d-%H%M%S")))
    request = preflight.Request(
        mode=plan.mode,
        # Windows are made in the directory, which may be the only place that a service can write to.
        capture_parent=output.absolute() if options else output.absolute().parent,
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
            if f.severity == WARNING:
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
                if f.severity == WARNING:
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
    output: Path, plan: Plan, options: flight_options.Options, machine: Machine, progress: Progress, user: ownership.User | None,
    argv: Sequence[str],
) -> int:  # fmt: skip
    """Run the flight recorder to its end."""
    directory, whole = flight_directory.Directory(output, user), False
    for path, size in directory.left():
        progress.warn(f"{path}: left by a recorder that was killed ({human_bytes(size)}); remove it")
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
    if stopped_by.startswith("error"):
        progress.warn(stopped_by.removeprefix("error: "))
    for text in totals.problems:
        progress.warn(f"cut short: {text}")
    refused = {"an hour": totals.end.get("over_hour", 0), "in all (disk)": totals.end.get("over_disk", 0)}
    for limit, n in refused.items():
        if n:
            progress.warn(f"{n} triggers made no window: the limit of windows {limit} was reached")
    if n := totals.end.get("unseen", 0):
        progress.warn(f"{n} slow messages were not examined, too many came at once: no window names them")
    if n := totals.end.get("no_percentile", 0):
        progress.warn(f"{n} messages had no percentile: there were too many services at once")
    progress.say(
        f"{totals.windows} windows, {human_bytes(totals.bytes)}, from {totals.end.get('triggers', 0)} triggers; "
        f"{totals.end.get('records', 0)} records went through memory"
    )
    if totals.windows:
        progress.say(f"next: nsight-report {output}/WINDOW.nsight")
    if stopped_by.startswith("error") or totals.problems:
        return EXIT_IO
    return EXIT_INTERRUPTED if stopped_by == "signal" else EXIT_OK


def _write_window(machine: Machine) -> int:
    """Request a window from the flight recorders."""
    if machine.euid != 0:
        raise Missing("not root: flight recorders are root's", "run it with sudo")
    for pid in flight_directory.ask_all(machine.root):
        print(f"requested from: nsight-record {pid}")
    return EXIT_OK


def _fix(
    changes: Changes, plan: Plan, machine: Machine, request: preflight.Request, progress: Progress
) -> list[Finding]:
    """Make the changes, or share those of other recorders; returns what preflight finds after that."""
    for left in changes.join({(n["netns"], n["name"]) for n in plan.nics}):
        progress.warn(left)
    # Only now: another recorder may have undone a change since preflight looked.
    for finding in preflight.check(machine, request):
        if finding.fix:
            progress.say(f"changing for this recording: {finding.what}")
            changes.apply(finding.fix)
    return preflight.check(machine, request)


def _put_back(changes: Changes, capture: Capture, progress: Progress) -> None:
    """Put the machine's settings back, and hand the capture over to its owner."""
    for failure in changes.restore():
        progress.warn(f"could not be put back: {failure}")
    try:
        if capture.manifest["changed"]:
            capture.save()
        capture.hand_over()
    except OutputError as e:
        progress.warn(f"{e}; {e.hint}")


def _restore(machine: Machine) -> int:
    """Put back the changes that killed recorders left, and report them."""
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
    known = counts is not None and (m["recorder_kind"] != "bpf" or counts.ended)
    events = sum(counts.written.values()) if counts else 0
    sizes = ", ".join(
        f"{name} {human_bytes(size)}" for name in ("records", "perf.data") if (size := capture.size(name))
    )
    progress.say(
        f"recorded {seconds:.1f} s: {events if known else 'an unknown number of'} message events, {sizes}"
    )
    for loss in m["losses"]:
        number = "" if loss["count"] is None else f": {loss['count']}"
        progress.warn(f"{loss['tool']}: {loss['what']}{number}")
    if not m["losses"]:
        progress.say("lost: nothing")
    if why := m.get("unreserved"):
        progress.warn(f"{tally.UNRESERVED} ({why}); free disk space, or record elsewhere with -o DIR")
    for name, reason in m.get("counters_missing", {}).items():
        progress.warn(f"counter {name}: {reason}")
    taken = m.get("intervals", [])
    for kind in taken:
        progress.say(f"interval {kind['name']}: {kind.get('begun', 0):,} begun")
    if known and not events and not taken:
        progress.warn("no message was seen; are the filters right, and was there traffic?")
    explain = " --direction interval" if taken else ""
    progress.say(f"capture: {capture.path}\nnext:    nsight-report {capture.path}{explain}")


def main(argv: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Entry point; returns the exit code. ``machine``: the machine to look at, for tests."""
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
        print_error(e)
        return e.exit_code
    except OSError as e:
        progress.clear()
        print(f"error: {e.filename or 'system'}: {e.strerror}", file=sys.stderr)
        return EXIT_IO
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        os.umask(umask)
