# SPDX-License-Identifier: GPL-2.0-only
"""The nsight-monitor command."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsight_record.errors import EXIT_INTERRUPTED, EXIT_OK, OutputError, RecordError, Usage

from . import loader, snapshots, terminal
from .arguments import parser
from .snapshots import Header, Snapshot
from .views import Views

_FILTERS = ("port", "peer", "pid", "comm", "cgroup", "iface", "netns", "group_by", "stages", "cost")


class _Stop:
    """Ctrl-C and SIGTERM: the loader ends, and its last line is still shown."""

    def __init__(self) -> None:
        self.asked = False
        self._process: subprocess.Popen[str] | None = None
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self._on_signal)

    def watch(self, process: subprocess.Popen[str]) -> None:
        """This one is to end then."""
        self._process = process
        if self.asked:
            process.send_signal(signal.SIGTERM)

    def _on_signal(self, _number: int, _frame: Any) -> None:
        self.asked = True
        if self._process is None:
            raise KeyboardInterrupt
        try:
            self._process.send_signal(signal.SIGTERM)
        except PermissionError:
            raise KeyboardInterrupt from None  # an exporter is nobody by now


@contextmanager
def _lines(args: argparse.Namespace, stop: _Stop) -> Iterator[Iterable[str]]:
    """Of the loader, or of the input."""
    if args.input is None:
        with loader.running(loader.argv(args, loader.find())) as process:
            stop.watch(process)
            assert process.stdout
            yield process.stdout
    elif args.input == "-":
        yield sys.stdin
    else:
        try:
            file = Path(args.input).open(encoding="utf-8", errors="replace")  # noqa: SIM115 closed below
        except OSError as e:
            raise Usage(f"--input {args.input}: {e.strerror}") from e
        with file:
            yield file


def _shown(args: argparse.Namespace, header: Header) -> Callable[[Snapshot], None]:
    """What to do with each snapshot."""
    if args.prometheus is not None:
        return _exported(args, header)
    views, screen = Views(header, args.total), terminal.Screen()
    began: list[int] = []

    def show(snapshot: Snapshot) -> None:
        began.append(snapshot.monotonic_ns - round(args.interval * 1e9))
        view = views.of(snapshot, began[0])
        if args.top:
            sys.stdout.write(screen.draw(view, shutil.get_terminal_size().lines))
        elif view.rows or not snapshot.last:
            print(terminal.block(view))
        sys.stdout.flush()

    return show


def _exported(args: argparse.Namespace, header: Header) -> Callable[[Snapshot], None]:
    from . import exporter  # prometheus_client takes a while to load

    collector = exporter.Collector(header)
    where = exporter.address(args.prometheus)
    exporter.drop_privileges()
    port = exporter.serve(collector, where)
    print(f"serving http://{where[0]}:{port}/metrics", file=sys.stderr, flush=True)
    return collector.update


def _monitor(args: argparse.Namespace, stop: _Stop) -> int:
    with _lines(args, stop) as lines:
        if args.json:
            for line in lines:
                sys.stdout.write(line)
                sys.stdout.flush()
            return EXIT_OK
        header, states = snapshots.read(lines)
        show, last = _shown(args, header), False
        for snapshot in states:
            show(snapshot)
            last = snapshot.last
    if not last and args.input is None and not stop.asked:
        raise OutputError("nsight-histograms ended without its last line")
    return EXIT_OK


def _check(args: argparse.Namespace) -> None:
    """Raises Usage for options that do not go together."""
    outputs = [name for name in ("top", "json", "prometheus") if getattr(args, name)]
    if len(outputs) > 1:
        raise Usage(f"--{outputs[0]} and --{outputs[1]}: one of them")
    if args.input is not None and (wrong := [name for name in _FILTERS if getattr(args, name)]):
        raise Usage(f"--input: not with --{wrong[0].replace('_', '-')}", "filter where the input is made")
    if args.prometheus is not None:
        from . import exporter

        exporter.check()
        exporter.address(args.prometheus)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        _check(args)
        stop = _Stop()
        if args.list_stages:
            print(terminal.stages(snapshots.header(loader.stages(loader.find()))))
            return EXIT_OK
        code = _monitor(args, stop)
        return EXIT_INTERRUPTED if stop.asked else code
    except RecordError as e:
        print(f"error: {e}", file=sys.stderr)
        if e.hint:
            print(f"hint: {e.hint}", file=sys.stderr)
        return e.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK  # whoever reads has seen enough
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
