# SPDX-License-Identifier: GPL-2.0-only
"""What the user sees on standard error while the recorder works."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from .errors import RecordError

_BAR = 24


def human_bytes(n: float) -> str:
    """Such as ``12.3 MB``."""
    if n < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB", "GB"):
        n /= 1000
        if n < 1000:
            return f"{n:.1f} {unit}"
    return f"{n / 1000:.1f} TB"


def printable(text: str) -> str:
    """``text`` without control characters: logs and names of devices could use them to control the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def print_error(error: RecordError) -> None:
    """An error and its fix on standard error."""
    print(f"error: {_lines(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"hint: {_lines(error.hint)}", file=sys.stderr)


class Progress:
    """Lines for steps; on a terminal also one line that is redrawn in place."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._drawn = False

    def say(self, text: str) -> None:
        """One line, unless quiet."""
        if not self._quiet:
            self.clear()
            print(_lines(text), file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """One line, also when quiet."""
        self.clear()
        print(f"warning: {_lines(text)}", file=self._stream, flush=True)

    def clear(self) -> None:
        """Remove the redrawn line."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def draw(self, elapsed: float, duration: float | None, detail: str) -> None:
        """Redraw; nothing when standard error is not a terminal."""
        if not self._live:
            return
        if duration:
            filled = min(_BAR, int(_BAR * elapsed / duration))
            head = f"recording [{'#' * filled}{'.' * (_BAR - filled)}] {elapsed:5.1f} / {duration:g} s"
        else:
            head = f"recording {elapsed:5.1f} s, Ctrl-C ends it"
        width = shutil.get_terminal_size().columns
        self._stream.write("\r" + f"{head}  {detail}"[: width - 1] + "\x1b[K")
        self._stream.flush()
        self._drawn = True

    def wait(self, text: str) -> None:
        """Redraw a step whose end is not known."""
        if self._live:
            self._stream.write("\r" + text[: shutil.get_terminal_size().columns - 1] + "\x1b[K")
            self._stream.flush()
            self._drawn = True


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
