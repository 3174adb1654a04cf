# SPDX-License-Identifier: GPL-2.0-only
"""Errors as users see them, and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_DECODER = 4
EXIT_OUTPUT = 5

EXIT_CODES = """exit codes:
  0  decoded; what was lost or could not be decoded is printed first
  2  wrong usage
  3  the perf.data cannot be used, such as one without Intel PT
  4  perf failed
  5  the output cannot be written
"""


class Unusable(Exception):
    """The input cannot be used; has the reason and the fix."""

    def __init__(self, why: str, hint: str, code: int = EXIT_INPUT) -> None:
        super().__init__(why)
        self.hint = hint
        self.code = code


def stop(program: str, why: str, hint: str, code: int) -> NoReturn:
    """Print the error with its fix and exit; stdout may be closed already."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_stdout()
    print(f"{program}: error: {why}\nhint: {hint}", file=sys.stderr)
    sys.exit(code)


def cannot_write(program: str, path: str, error: OSError) -> NoReturn:
    """Stop because ``path`` cannot be written."""
    hints = {28: "free some space, or name another place with -o", 13: "name another place with -o"}
    hint = hints.get(error.errno or 0, "name a file in a directory that exists and may be written, with -o")
    stop(program, f"cannot write {path}: {error.strerror}", hint, EXIT_OUTPUT)


def drop_stdout() -> None:
    """Prevent further writes to a pipe whose reader ended, also at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def default_interrupt() -> None:
    """No KeyboardInterrupt: in a callback it would make perf abort. perf sets its own handler later."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
