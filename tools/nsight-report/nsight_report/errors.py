# SPDX-License-Identifier: GPL-2.0-only
"""Errors a user sees: what is wrong, and the fix."""

EXIT_OK = 0
EXIT_USAGE = 2  # argparse's own code
EXIT_BAD_INPUT = 3  # the capture or a file in it cannot be used
EXIT_MISSING = 4  # something this machine or installation lacks
EXIT_IO = 5  # disk full, permission, a tool that this one runs died
EXIT_INTERRUPTED = 130


class NsightError(Exception):
    """An error with a fix; ``cli`` prints it as two lines and exits with ``exit_code``."""

    exit_code = EXIT_BAD_INPUT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadInput(NsightError):
    """A capture, or a file in it, is truncated, not from NSight, mixed or of an unknown version."""

    exit_code = EXIT_BAD_INPUT


class NoSlowMessages(BadInput):
    """The slow slice of a capture contains no message."""


class UsageError(NsightError):
    """Options that exclude each other."""

    exit_code = EXIT_USAGE


class Missing(NsightError):
    """A program, permission or package is missing."""

    exit_code = EXIT_MISSING


class OutputError(NsightError):
    """Writing failed: disk full or not permitted. Recorded data is never touched by this."""

    exit_code = EXIT_IO
