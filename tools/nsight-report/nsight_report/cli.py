# SPDX-License-Identifier: GPL-2.0-only
"""The command line of nsight-report. It only connects the parts: every decision is made elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from . import errors
from .arguments import COMMANDS, LATENCIES, command_parser, parser

if TYPE_CHECKING:
    from .api import Capture
    from .summary import Summary

EXIT_INTERNAL = 1


def main(argv: list[str] | None = None) -> int:
    """Run nsight-report; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    command = words[0] if words and words[0] in COMMANDS else None
    args = command_parser(command).parse_args(words[1:]) if command else parser().parse_args(words)
    try:
        return _run_command(command, args) if command else _run(args)
    except errors.NsightError as error:
        return _fail(args, str(error), error.hint, error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output ended (head, less), which is fine.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.EXIT_OK
    except ImportError as error:
        if not error.name or error.name.startswith("nsight_report"):
            return _internal(args, error)
        return _fail(
            args, f"Python package {error.name} is not installed", "run: make build", errors.EXIT_MISSING
        )
    except MemoryError:
        return _fail(args, "out of memory", "record for a shorter time, or filter by --port", errors.EXIT_IO)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _fail(
                args, "the disk is full; the recorded data is intact", "free some space", errors.EXIT_IO
            )
        return _internal(args, error)
    except Exception as error:  # the last resort: a user never sees a bare traceback
        return _internal(args, error)


def _fail(args: argparse.Namespace, message: str, hint: str, code: int) -> int:
    if args.debug:
        traceback.print_exc()
    from .names import printable

    print(f"error: {printable(message, 1000)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint, 1000)}", file=sys.stderr)
    return code


def _internal(args: argparse.Namespace, error: BaseException) -> int:
    where = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    place = f" at {Path(where.filename).name}:{where.lineno}" if where else ""
    return _fail(
        args,
        f"internal error: {type(error).__name__}: {error}{place}",
        "this is a bug in nsight-report: run again with --debug and report what it prints",
        EXIT_INTERNAL,
    )


def _open(args: argparse.Namespace, path: Path, output: Path | None = None, **changes: Any) -> Capture:
    from .api import open_capture
    from .selection.slices import Slice

    chosen: dict[str, Any] = {
        "slow": str(Slice.parse(args.slow)),
        "baseline": str(Slice.parse(args.baseline)),
        "app": args.app,
        "port": args.port,
        "direction": _direction(args),
        "intervals": args.intervals,
        "framing": args.framing,
        "categories": args.categories,
        "symfs": args.symfs,
        "decode": args.decode,
        "against": args.against,
        "nested": args.nested,
        "role": args.role,
    }
    return open_capture(path, output=output, progress=_progress(), **{**chosen, **changes})


def _direction(args: argparse.Namespace) -> str:
    """What is diagnosed: the value of --latency, expressed as a value of the older --direction."""
    asked = LATENCIES.get(args.latency)
    if asked and (args.direction or args.intervals) and args.direction != asked:
        other = f"--direction {args.direction}" if args.direction else "--intervals"
        raise errors.UsageError(f"--latency {args.latency} does not go with {other}", "leave one of them out")
    return asked or args.direction or ("interval" if args.intervals else "rx")


def _run_command(command: str, args: argparse.Namespace) -> int:
    """Make a command's object, and print it as JSON or for people."""
    if command == "import":
        return _import(args)
    from importlib import import_module

    from .export.terminal import plain_console

    module = import_module(f".commands.{command}", __package__)
    made = _made(module, command, args)
    if args.json:
        json.dump(made, sys.stdout, indent=2)
        print()
    else:
        module.print_for_people(made, plain_console(_printed_to(command, args)))
    sys.stdout.flush()
    return errors.EXIT_OK


def _made(module: Any, command: str, args: argparse.Namespace) -> dict[str, Any]:
    if command == "hops":
        with _progress()("reading"):
            of_packets: dict[str, Any] = module.make(args)
        return of_packets
    return _compare(module, args) if command == "compare" else _make(module, command, args)


def _printed_to(command: str, args: argparse.Namespace) -> TextIO:
    """Where messages for people go: standard error if the export itself goes to standard output."""
    from .export.output_file import is_stdout

    return sys.stderr if command == "export" and is_stdout(args.output) else sys.stdout


def _import(args: argparse.Namespace) -> int:
    from .perf_import import import_perf_data

    with _progress()("reading"):
        made = import_perf_data(args.perf_data, args.output, args.clock, args.sockets or ())
    if args.json:
        found = {
            "capture": str(made.capture),
            "mode": made.mode,
            "events": made.events,
            "losses": made.losses,
        }
        json.dump(found, sys.stdout, indent=2)
        print()
    else:
        from .names import printable

        counts = ", ".join(f"{n:,} {name}" for name, n in made.events.items())
        print(f"{printable(str(made.capture), 1000)}: mode {made.mode}; {counts}")
        print(f"next: nsight-report {printable(str(made.capture), 1000)}")
    sys.stdout.flush()
    return errors.EXIT_OK


def _in_order(args: argparse.Namespace) -> None:
    """Refuse MESSAGE CAPTURE; otherwise the error would be about a capture that does not exist."""
    if not args.capture.exists() and Path(args.message).is_dir():
        raise errors.UsageError(
            "the capture comes first", f"nsight-report show {args.message} {args.capture}"
        )


def _make(module: Any, command: str, args: argparse.Namespace) -> dict[str, Any]:
    if command == "waits":
        return _waits(module, args)
    if command == "show":
        _in_order(args)
    elif command in ("export", "top"):
        module.check(args)
    capture = _open(args, args.capture)
    capture.analyse()
    with _progress()(command):
        made: dict[str, Any] = module.make(capture, args)
    return made


def _waits(module: Any, args: argparse.Namespace) -> dict[str, Any]:
    """A recording without messages has waits, too: make only the tables that waits need."""
    from .api import open_capture

    capture = open_capture(args.capture, progress=_progress())
    capture.pipeline.run_for(module.NEEDS)
    with _progress()("waits"):
        made: dict[str, Any] = module.make(capture, args)
    return made


def _compare(module: Any, args: argparse.Namespace) -> dict[str, Any]:
    if args.against is not None:
        raise errors.UsageError("--against does not go with compare", "AFTER is compared with BEFORE already")
    from .selection.options import Selection
    from .selection.population import slices_overlap

    # Each capture brings its own intervals; a file that the user names belongs to AFTER.
    before = _open(args, args.before, intervals=None)
    # Alone, a capture leaves its slow messages out of the baseline; then AFTER would have a different baseline.
    if slices_overlap(before.diagnosed(False).diagnosed_messages, Selection.of(before.options)):
        before = _open(args, args.before, against=str(args.before), intervals=None)
    after = _open(args, args.capture, against=str(args.before))
    sides = [module.Side.of(capture) for capture in (before, after)]
    with _progress()("comparing"):
        made: dict[str, Any] = module.make(*sides)
    return made


def _run(args: argparse.Namespace) -> int:
    if args.lifetimes is not None and not args.output:
        raise errors.UsageError("--lifetimes is about the page", "name a directory for it: -o DIR")
    for option in ("json", "rerun", "lifetimes"):
        value = getattr(args, option)
        if args.stage and value is not None and value is not False:
            raise errors.UsageError(
                f"--{option} does not go with --stage",
                "--stage runs one stage and makes no report: leave one out",
            )
    capture = _open(args, args.capture, args.output)
    if args.stage:
        for name, n_rows in capture.pipeline.run_alone(args.stage).items():
            path = capture.pipeline.store.directory / f"{name}.parquet"
            print(f"{path}: {n_rows:,} rows", file=sys.stderr)
        return errors.EXIT_OK
    capture.analyse(args.rerun)
    from .summary import summarise

    summary = summarise(capture)
    page = _write_report(capture, summary, args.output, args.lifetimes) if args.output else None
    if args.json:
        from .export.json import summary_object

        json.dump(summary_object(capture, summary), sys.stdout, indent=2)
        print()
    else:
        from .export.terminal import print_summary

        print_summary(capture, summary, sys.stdout, hints=page is None)
    sys.stdout.flush()
    if page is not None:
        print(f"report: {page}", file=sys.stderr if args.json else sys.stdout, flush=True)
    return errors.EXIT_OK


def _write_report(capture: Capture, summary: Summary, output: Path, n_lifetimes: int | None) -> Path:
    from .export.html import write_report

    with _progress()("report and figures"):
        return write_report(capture, summary, output, n_lifetimes)


def _progress() -> Callable[[str], AbstractContextManager[object]]:
    """Shows which stage is running, on a terminal only."""

    @contextlib.contextmanager
    def show(what: str) -> Iterator[None]:
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(f"{what} ..."):
            yield

    return show


def run() -> NoReturn:
    """Entry point of the launcher."""
    sys.exit(main())
