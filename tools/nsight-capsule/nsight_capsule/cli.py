# SPDX-License-Identifier: GPL-2.0-only
"""The nsight-capsule command: points, settings, one run, and what became of the packets."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from io import FileIO
from pathlib import Path
from typing import Any

from nsight_record import host, ownership
from nsight_record.capture import Capture, default_name
from nsight_record.errors import EXIT_INTERRUPTED, EXIT_IO, EXIT_OK, RecordError, Usage
from nsight_record.progress import Progress, print_error
from nsight_record.supervisor import Signals

from . import __version__, account, alone, classes, clocks, late, mtu, points, settings, stamp
from .arguments import DEFAULT_RATE, parser

FORMAT = "nsight-capsules"
VERSION = 2  # since 2, capsules may have an annotation


def _words(args: argparse.Namespace, labels: Sequence[str] = ()) -> str:
    """The given settings as words. ``labels``: of all devices, in order."""
    address, mask = args.address or (None, None)
    return settings.words(
        threshold=None if args.rate is None else settings.threshold(args.rate),
        every_ns=args.every,
        port=args.port,
        address=address,
        mask=mask,
        protocols=settings.PROTOCOLS[args.protocol] if args.protocol else None,
        points=points.mask(labels, args.only) if args.only else None,
        **(classes.words(args.at) if args.at else {}),
    )


def _change(args: argparse.Namespace) -> int:
    directory = Path(args.change)
    known = points.labels(_manifest(directory).get("points")) if args.only else ()
    words = _words(args, known)
    if not words:
        raise Usage(
            "--change: nothing to change",
            "give --rate, --every, --port, --address, --protocol, --only or --at",
        )
    stamp.ask(directory, words)
    return EXIT_OK


def _manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a running nsight-capsule. Raises Usage."""
    try:
        made = json.loads((directory / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise Usage(
            f"{directory}/manifest.json: {error}", "--change takes the directory of one that runs"
        ) from error
    return made if isinstance(made, dict) else {}


def _place_options(devices: Sequence[points.Device]) -> list[str]:
    return [word for device in devices for word in ("--point", device.option())]


def _survey(args: argparse.Namespace, progress: Progress) -> list[points.Space]:
    """All namespaces that can be examined."""
    spaces, unseen = points.survey()
    if unseen and not (args.match or args.leave):
        progress.warn(
            f"network namespaces that could not be looked at: {', '.join(unseen)}; capsules of packets that leave there stay in them"
        )
    return spaces


def _options(
    args: argparse.Namespace, devices: Sequence[points.Device], spaces: Sequence[points.Space]
) -> tuple[list[str], dict[str, Any]]:
    """nsight-stamp's options, and manifest.settings."""
    rate = args.rate if args.rate is not None else Fraction(1) if args.every else DEFAULT_RATE
    args.rate = rate
    chosen: dict[str, int | str | None] = {
        "most_bytes": mtu.most_bytes(devices, spaces),
        "vxlan_port": points.vxlan_port(devices),
        "leave": int(args.leave),
        "keep": int(args.keep),
    }
    session = args.session or secrets.randbelow(0xFFFF) + 1
    options = [*_place_options(devices), "--ring-kb", str(args.ring_kb), "--session", str(session)]
    group = settings.cgroup(args.cgroup) if args.cgroup else None
    if group:
        chosen |= {"cgroup": group.id, "cgroup_level": group.level}
    if args.match:
        if args.every:
            raise Usage("--match: not with --every", "points know packets by their fields alone: use --rate")
        if group:
            raise Usage(
                "--match: not with --cgroup", "packets say nothing of their sender's cgroup: use --port"
            )
        options.append("--match")
    elif args.protocol != "udp":
        options += ["--cgroup", str(group.path if group else settings.cgroup_root())]
    options += ["--set", f"{_words(args, [d.label() for d in devices])} {settings.words(**chosen)}"]
    described = {
        "rate": str(rate), "every_ns": args.every or 0, "port": args.port, "protocol": args.protocol or "both", "match": args.match,
        "only": args.only or None, "at": [rule.text for rule in args.at] or None, "cgroup": args.cgroup, "address": args.address and list(args.address), "session": session, **chosen,
    }  # fmt: skip
    return options, described


def _follow(came: late.Late, capture: Capture) -> None:
    """Take note of devices that came, at once, in case this process is killed."""
    with contextlib.suppress(RecordError):  # nsight-stamp ended, which _wait notices
        if came.look():
            came.save(capture)


def _wait(
    run: stamp.Stamp,
    signals: Signals,
    duration: float | None,
    progress: Progress,
    meanwhile: Callable[[], None],
) -> str:
    """Wait until the time is over, a signal comes, or nsight-stamp ends; returns which. Calls ``meanwhile()`` ten
    times a second."""
    began = time.monotonic()
    poller = select.poll()
    poller.register(signals.read_fd, select.POLLIN)
    while run.process.poll() is None:
        elapsed = time.monotonic() - began
        if signals.count:
            return "signal"
        if duration is not None and elapsed >= duration:
            return "duration"
        progress.draw(elapsed, duration, "stamping")
        meanwhile()
        poller.poll(100 if duration is None else min(100, (duration - elapsed) * 1000 + 1))
    return "error: nsight-stamp ended"


def _stamp(args: argparse.Namespace, argv: Sequence[str], progress: Progress) -> int:
    devices = points.with_boundary(points.choose(args.point, args.netns), args.boundary)
    if args.restore:
        with alone.taken():
            cleared = stamp.clear(_place_options(devices))
        progress.say(f"marks taken from {cleared} connections")
        return EXIT_OK
    stamp.program()
    with contextlib.ExitStack() as held:
        lock = None if args.match else held.enter_context(alone.taken())
        return _run(args, argv, devices, lock, progress)


def _run(
    args: argparse.Namespace,
    argv: Sequence[str],
    devices: Sequence[points.Device],
    lock: FileIO | None,
    progress: Progress,
) -> int:
    """One run, into a new directory. nsight-stamp holds the lock too, in case it lives longer."""
    if args.match or args.leave:
        devices = [replace(d, wraps=False) for d in devices]
    if ipsec := sorted({d.netns.label or "this namespace" for d in devices if d.wraps}):
        progress.warn(
            f"IPsec policies in {', '.join(ipsec)}: capsules are taken off where packets come in, as they may leave encrypted (--leave lets them)"
        )
    common = clocks.Clocks(args.clock, args.guest)
    spaces = _survey(args, progress)
    options, described = _options(args, devices, spaces)
    # Where capsules are taken off in addition to the points.
    guards = [] if args.match or args.leave else points.guards(devices, points.vxlan_port(devices), spaces)
    options += [word for device in guards for word in ("--guard", device.option())]
    name = default_name(socket.gethostname(), time.strftime("%Y%m%d-%H%M%S")).removesuffix(".nsight")
    output = Path(args.output or f"{name}.capsules")
    user = ownership.invoking_user(os.environ)
    with Signals() as signals, Capture(output, user=user) as capture:
        described_host = host.describe()
        capture.manifest.update(
            format=FORMAT, version=VERSION, tool=__version__, argv=list(argv), host=described_host, settings=described,
            points=points.manifest(devices), guards=[d.label() for d in guards],
            # Every hop names the clock of its time; a run on one kernel has only one clock.
            clocks=[{"id": 0, "name": "monotonic", "boot_id": described_host["boot_id"], "bound_ns": 0}],
        )  # fmt: skip
        capture.save()
        fds = [int(capture.directory.name), *([lock.fileno()] if lock else [])]
        run = stamp.Stamp(options, capture.directory, capture.create(stamp.LOG), fds)
        try:
            run.ready()
            capture.manifest["start"] = host.Clocks().now()
            came = late.Late(args, devices, guards, progress, run, described["most_bytes"])
            came.look_at_all()
            came.save(capture)
            progress.say(f"stamping at {2 * len(devices)} points of {len(devices)} devices")

            def meanwhile() -> None:
                common.take()
                _follow(came, capture)

            stopped_by = _wait(run, signals, args.duration, progress, meanwhile)
            progress.clear()
            _follow(came, capture)
            for name in common.end():
                progress.warn(f"the TSC of guest {name} changed: packets must show how its clock differs")
            capture.manifest["common"] = common.manifest()
            came.save(capture)
            came.warn()
            return _finish(capture, run, stopped_by, progress)
        finally:
            run.stop()
            capture.release_reserve()
            capture.hand_over()


def _finish(capture: Capture, run: stamp.Stamp, stopped_by: str, progress: Progress) -> int:
    """End the run, complete the manifest, and print what became of the packets."""
    m = capture.manifest
    m.update(stop=host.Clocks().now(), stopped_by=stopped_by)
    try:
        m["counted"] = run.end()
    except RecordError as e:
        m.update(state="cut", counted=None)
        capture.save()
        raise RecordError(f"{e}; what was collected is in {capture.path}", e.hint) from e
    m["state"] = "complete"
    capture.release_reserve()
    capture.save()
    made = account.of(m["counted"]["counts"])
    for text in account.lines(made):
        progress.say(text)
    for name, n in made.trouble.items():
        progress.warn(f"{n} {account.TROUBLE[name]}")
    if m["counted"]["existing_refused"]:
        progress.warn(
            f"{m['counted']['existing_refused']} connections were there before and get no capsules: that needs Linux 6.14"
        )
    if not made.drawn and not made.matched:
        progress.warn("no packet was chosen; is the filter right, and was there traffic?")
    progress.say(f"next: nsight-report hops {capture.path}")
    if stopped_by.startswith("error") or m["counted"]["unwritten"]:
        return EXIT_IO
    return EXIT_INTERRUPTED if stopped_by == "signal" else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    progress = Progress(quiet=args.quiet)
    umask = os.umask(ownership.PRIVATE_UMASK)
    try:
        return _change(args) if args.change else _stamp(args, ["nsight-capsule", *argv], progress)
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
