# SPDX-License-Identifier: GPL-2.0-only
"""The command line of nsight-report. Only wires: every decision is made elsewhere."""

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
from typing import TYPE_CHECKING, NoReturn

from . import __version__, errors

if TYPE_CHECKING:
    from .api import Capture
    from .summary import Summary

EXIT_INTERNAL = 1

_STAGES = ("clocks", "events", "messages", "contexts", "anomalies", "attribution")

_EPILOG = """\
stages, in order: clocks, events, messages, contexts, anomalies, attribution

exit codes:
  0    the report was made
  1    internal error (a bug in nsight-report)
  2    wrong usage
  3    the capture, or a file in it, cannot be used
  4    something this installation lacks
  5    writing failed (disk full, no permission); recorded data is intact
  130  interrupted

examples:
  nsight-report web.nsight                     what delayed the slowest 1 %
  nsight-report web.nsight -o report           the same as HTML, with figures
  nsight-report web.nsight --target 1ms-       what delayed messages slower than 1 ms
  nsight-report web.nsight --json | jq .causes
"""


def parser() -> argparse.ArgumentParser:
    """The options of nsight-report; the manual page is held against its help."""
    p = argparse.ArgumentParser(
        prog="nsight-report",
        description="Say what delayed the slow messages of a capture, on which core, and by how much.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("capture", metavar="CAPTURE", type=Path, help="directory written by nsight-record")
    p.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="write report.html and its figures to DIR"
    )
    p.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output, nothing else"
    )
    p.add_argument(
        "--target",
        metavar="SPEC",
        default="p99-100",
        help="messages to explain: percentiles such as p99-100 (the default), latencies such as 1ms- or 20us-2ms, "
        "time:1.5s-2s since the first message, conn:4, peer:10.0.0.2:41000, type:get, id:17,18 or id:@FILE; joined by +",
    )
    p.add_argument(
        "--reference",
        metavar="SPEC",
        default="p25-75",
        help="messages to compare with, likewise (default: p25-75)",
    )
    p.add_argument(
        "--against",
        metavar="CAPTURE",
        help="compare with the reference messages of another capture (before a change, say) instead of this one's",
    )
    p.add_argument("--app", metavar="NAME|PID", help="only messages of this program")
    p.add_argument("--port", metavar="N", type=_port, help="only messages of this port of the application")
    p.add_argument(
        "--direction", choices=("rx", "tx"), default="rx", help="received (default) or sent messages"
    )
    p.add_argument(
        "--framing",
        choices=("memcached", "redis", "http", "none"),
        default="none",
        help="cut messages by protocol (needs a capture made with --payload); none: one read or write is one message",
    )
    p.add_argument(
        "--categories",
        metavar="FILE",
        help="CSV of cause categories and advice whose rows come before the built-in ones",
    )
    p.add_argument(
        "--symfs",
        metavar="DIR",
        help="grade pt: folder with the recorded machine's programs, when this is another machine",
    )
    p.add_argument(
        "--nested",
        metavar="PERCENT",
        type=_percent,
        default=80,
        help="grade pt: leave out a function of whose deviation nested ones explain this much (default: 80)",
    )
    p.add_argument(
        "--decode",
        choices=("all", "chosen"),
        default="all",
        help="grade pt: decode all of the trace (default), or only around the messages that are compared, which is faster",
    )
    p.add_argument(
        "--stage", metavar="NAME", choices=_STAGES, help="run only this stage, from its stored input"
    )
    p.add_argument("--rerun", metavar="NAME", choices=_STAGES, help="run this stage and those after it again")
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")
    p.add_argument("--version", action="version", version=f"nsight-report {__version__}")
    return p


def _port(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return value


def _percent(text: str) -> int:
    value = int(text) if text.isdecimal() and len(text) < 4 else 0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage (1 to 100)")
    return value


def main(argv: list[str] | None = None) -> int:
    """Run nsight-report; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        return _run(args)
    except errors.NsightError as error:
        return _fail(args, str(error), error.hint, error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (head, less): that is its right.
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


def _run(args: argparse.Namespace) -> int:
    from .anomalies.slices import Slice
    from .api import open_capture

    capture = open_capture(
        args.capture,
        output=args.output,
        progress=_progress(),
        target=str(Slice.parse(args.target)),
        reference=str(Slice.parse(args.reference)),
        app=args.app,
        port=args.port,
        direction=args.direction,
        framing=args.framing,
        categories=args.categories,
        symfs=args.symfs,
        decode=args.decode,
        against=args.against,
        nested=args.nested,
    )
    if args.stage:
        for name, table in capture.pipeline.run_alone(args.stage).items():
            path = capture.pipeline.store.directory / f"{name}.parquet"
            print(f"{path}: {table.num_rows:,} rows", file=sys.stderr)
        return errors.EXIT_OK
    capture.analyse(args.rerun)
    from .summary import summarise

    summary = summarise(capture)
    page = _write_report(capture, summary, args.output) if args.output else None
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


def _write_report(capture: Capture, summary: Summary, output: Path) -> Path:
    from .export.html import write_report

    with _progress()("report and figures"):
        return write_report(capture, summary, output)


def _progress() -> Callable[[str], AbstractContextManager[object]]:
    """Shows which stage runs, on a terminal only."""

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
