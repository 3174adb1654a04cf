# SPDX-License-Identifier: GPL-2.0-only
"""Errors that a user sees, and the exit codes."""

from __future__ import annotations

import errno
import os

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_MISSING = 4
EXIT_IO = 5
EXIT_INTERRUPTED = 130


class RecordError(Exception):
    """An error with a fix; ``cli`` prints it as two lines and exits with ``exit_code``."""

    exit_code = EXIT_IO

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Usage(RecordError):
    """An option does not fit this machine or another option."""

    exit_code = EXIT_USAGE


class Missing(RecordError):
    """A program, permission or kernel feature is not there."""

    exit_code = EXIT_MISSING


class OutputError(RecordError):
    """The capture cannot be written."""

    exit_code = EXIT_IO


class ToolDied(RecordError):
    """perf, bpftrace or the clock reader ended too early."""

    exit_code = EXIT_IO


def unwritable_hint(reason: str) -> str:
    """What to do when a file cannot be written, for this error message."""
    if os.strerror(errno.EROFS).lower() in reason.lower():
        return "the kernel's log (dmesg) says why the disk became read-only; record elsewhere with -o DIR"
    return "free disk space, or record elsewhere with -o DIR"
