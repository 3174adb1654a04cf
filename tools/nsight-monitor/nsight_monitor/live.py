# SPDX-License-Identifier: GPL-2.0-only
"""--top: one table, drawn in place, that follows keys if its terminal has a keyboard."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator

from . import terminal
from .views import View


class Live:
    """Draws on standard output. Keys come from another thread, which calls ``end`` at the key q."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._screen = terminal.Screen()
        self._view: View | None = None
        self._paused = False
        self._lock = threading.Lock()

    def note(self, line: str) -> None:
        """Show this line at the end of the screen from now on."""
        with self._lock:
            self._screen.note(line)

    def show(self, view: View) -> None:
        """The next interval."""
        with self._lock:
            self._screen.remember(view)
            if not self._paused:
                self._view = view
                self._draw()

    def press(self, key: str) -> None:
        """s sorts by the next column, space stops and starts, q ends like Ctrl-C."""
        if key == "q":
            self._end()
        with self._lock:
            if key == "s":
                self._screen.sort_by_next()
            elif key == " ":
                self._paused = not self._paused
            if key in ("s", " ") and self._view:
                self._draw()

    def _draw(self) -> None:
        assert self._view
        size = shutil.get_terminal_size() if sys.stdout.isatty() else None
        sys.stdout.write(self._screen.draw(self._view, size, self._paused))
        sys.stdout.flush()

    @contextlib.contextmanager
    def keys(self) -> Iterator[None]:
        """Until the end of the block, keys come without Enter. Not from a pipe, and not in the background of a shell, which
        would stop this process."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()) or _is_background(sys.stdin.fileno()):
            yield
            return
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd, termios.TCSANOW)
        self._screen.has_keys = True
        threading.Thread(target=self._read, args=(fd,), daemon=True).start()
        try:
            yield
        finally:
            termios.tcsetattr(fd, termios.TCSANOW, before)

    def _read(self, fd: int) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            while key := os.read(fd, 1):
                self.press(key.decode("latin-1"))


def _is_background(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return False  # another session's terminal
