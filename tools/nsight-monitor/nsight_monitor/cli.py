# SPDX-License-Identifier: GPL-2.0-only
"""The nsight-monitor command."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from nsight_record.errors import EXIT_INTERRUPTED, EXIT_OK, OutputError, RecordError, Usage

from . import flight, loader, relay, snapshots, terminal
from .arguments import parser
from .live import Live
from .snapshots import Header, Snapshot
from .views import Views

#: Options that only the process that makes the lines can follow.
_OF_THE_MAKER = ("once", "duration", "port", "peer", "pid", "comm", "cgroup", "iface", "netns", "group_by", "stages", "cost",
                 "flight", "trigger", "min_queue", "listen")  # fmt: skip

_AGAIN_S = 0.05


class _Stop:
    """Ctrl-C and SIGTERM: the loader ends, and its last line is still shown. The same happens when the
    exporter has ended."""

    def __init__(self) -> None:
        self.asked = False
        self._process: subprocess.Popen[str] | None = None
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self._on_signal)

    def watch(self, process: subprocess.Popen[str]) -> None:
        """End this process at the signal."""
        self._process = process
        if self.asked:
            process.send_signal(signal.SIGTERM)

    def with_child(self, child: relay.Child) -> None:
        """Also end when that child has ended by itself."""
        signal.signal(signal.SIGCHLD, lambda *_: None if child.lives() else self._end())

    def ask(self) -> None:
        """Stop as at Ctrl-C. From another thread."""
        while not self.asked:
            # A signal does not interrupt a read that the main thread is about to begin, so that its handler would wait for
            # the next line.
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(_AGAIN_S)

    def _on_signal(self, _number: int, _frame: Any) -> None:
        first, self.asked = not self.asked, True
        if self._process:
            self._end()
        elif first:
            raise KeyboardInterrupt

    def _end(self) -> None:
        if self._process:
            self._process.send_signal(signal.SIGTERM)


@contextmanager
def _lines(args: argparse.Namespace, stop: _Stop) -> Iterator[Iterable[str]]:
    """Lines of the loader or of the input."""
    if args.input is None:
        recorder = flight.Recorder(Path(args.flight), args.windows_per_hour) if args.flight else None
        with loader.running(loader.argv(args, loader.find()), loader.followed_of(args)) as process:
            stop.watch(process)
            assert process.stdout
            yield flight.merged(process.stdout, recorder) if recorder else process.stdout
    elif args.input == "-":
        yield sys.stdin
    else:
        try:
            path = Path(args.input)
            file = relay.connected(path) or path.open(encoding="utf-8", errors="replace")
        except OSError as e:
            raise Usage(f"--input {args.input}: {e.strerror}") from e
        with file:
            yield file


def _shown(args: argparse.Namespace, header: Header, live: Live | None) -> Callable[[snapshots.Line], None]:
    """What to do with each line."""
    views = Views(header, args.total)
    began: list[int] = []

    def show(line: snapshots.Line) -> None:
        if isinstance(line, snapshots.GivenNames):
            views.give(line.names)
        elif isinstance(line, snapshots.Window):
            said = terminal.window(line, args.flight)
            if live:
                live.note(said)
            else:
                print(said)
        elif isinstance(line, Snapshot):
            began.append(line.monotonic_ns - round(args.interval * 1e9))
            view = views.of(line, began[0])
            if live:
                live.show(view)
            elif view.rows or not line.last:
                print(terminal.block(view))
        sys.stdout.flush()

    return show


def _export(args: argparse.Namespace, lines: Iterable[str]) -> int:
    """Serve the lines' data, without privileges, until they end."""
    from . import exporter, server, web_config  # prometheus_client takes a while to load

    try:
        config = web_config.load(Path(args.web_config)) if args.web_config else web_config.WebConfig()
        where = exporter.address(args.prometheus)
        exporter.drop_privileges()
        header, states = snapshots.read(lines)
        collector = exporter.Collector(header, args.native_histograms)
        port = server.serve(collector.answer, where, config)
        scheme = "https" if config.tls else "http"
        print(f"serving {scheme}://{where[0]}:{port}/metrics", file=sys.stderr, flush=True)
        for line in states:
            collector.update(line)
    except RecordError as e:
        return _failed(e)
    return EXIT_OK


def _exporter(args: argparse.Namespace) -> list[str]:
    """The command of the exporter alone, which reads the lines from its standard input."""
    command = [sys.executable, sys.argv[0], "--input", "-", "--prometheus", args.prometheus]
    command += ["--native-histograms"] if args.native_histograms else []
    return command + (["--web-config", args.web_config] if args.web_config else [])


def _failed(e: RecordError) -> int:
    print(f"error: {e}", file=sys.stderr, flush=True)
    if e.hint:
        print(f"hint: {e.hint}", file=sys.stderr, flush=True)
    return e.exit_code


def _send(send: Callable[[str], Any], lines: Iterable[str]) -> None:
    for line in relay.named(lines):
        send(line)


def _print(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _monitor(args: argparse.Namespace, stop: _Stop) -> int:
    if args.prometheus is not None and args.input is None:
        child = relay.Child(_exporter(args))
        stop.with_child(child)
        try:
            with _lines(args, stop) as lines:
                _send(child.send, lines)
        except BrokenPipeError:
            pass  # its exit code shows why
        finally:
            code = child.end()
        return code
    with _lines(args, stop) as lines:
        if args.prometheus is not None:
            return _export(args, lines)
        if args.json:
            _send(_print, lines)
            return EXIT_OK
        if args.listen is not None:
            with closing(relay.Relay(Path(args.listen))) as everybody:
                _send(everybody.send, lines)
            return EXIT_OK
        header, states = snapshots.read(lines)
        live = Live(stop.ask) if args.top else None
        show, last = _shown(args, header, live), False
        with live.keys() if live else nullcontext():
            for line in states:
                show(line)
                last = isinstance(line, Snapshot) and line.last
    if not last and args.input is None and not stop.asked:
        raise OutputError("nsight-histograms ended without its last line")
    return EXIT_OK


def _check(args: argparse.Namespace) -> None:
    """Raises Usage for options that cannot be combined."""
    outputs = [name for name in ("top", "json", "prometheus", "listen") if getattr(args, name)]
    if len(outputs) > 1:
        raise Usage(f"--{outputs[0]} and --{outputs[1]}: one of them")
    if args.input is not None and (wrong := [name for name in _OF_THE_MAKER if getattr(args, name)]):
        raise Usage(f"--input: not with --{wrong[0].replace('_', '-')}", "give it where the input is made")
    if args.trigger and not (args.flight or args.json):
        raise Usage("--trigger: not without --flight", "--flight DIR names the flight recorder's directory")
    if args.prometheus is None and (args.web_config or args.native_histograms):
        raise Usage("--web-config and --native-histograms: not without --prometheus")
    for text in args.trigger or ():
        flight.trigger(text)
    if args.prometheus is not None:
        from . import exporter

        exporter.check(args.native_histograms)
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
        return _failed(e)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK  # the reader has closed the pipe
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
