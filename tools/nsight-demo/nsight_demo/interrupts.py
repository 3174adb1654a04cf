# SPDX-License-Identifier: GPL-2.0-only
"""Ctrl-C and SIGTERM at any moment, without losing track of what was just created."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

REPEAT_S = 0.2


def _under_way() -> bool:
    """True while a KeyboardInterrupt is handled: in its ``except``, ``finally`` or ``__exit__``."""
    exc = sys.exc_info()[1]
    while exc is not None and not isinstance(exc, KeyboardInterrupt):
        exc = exc.__context__
    return exc is not None


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt, but never inside ``held()``.

    A signal between creating a namespace and noting that it exists would leave it behind; a second Ctrl-C
    during the teardown would too. Inside ``held()`` a signal is only noted, and the interrupt follows when
    the outermost block ends. A blocked signal mask would do the same, but every child inherits it.

    Python ignores exceptions in ``__del__`` and in weakref callbacks (``import`` uses some), so an interrupt
    may get lost. After the first signal a timer repeats it until ``close()``, but not while an earlier one is
    under way: that would break its cleanup. Python prints a traceback for each ignored exception; an
    interrupt's traceback is suppressed, because the interrupt comes again.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._pending = False
        self._closing = False
        self._previous: dict[int, object] = {}
        self._print_ignored = sys.unraisablehook

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._closing:
            return
        if not self._pending:
            self._pending = True
            signal.setitimer(signal.ITIMER_REAL, REPEAT_S, REPEAT_S)
        self._raise_pending()

    def _raise_pending(self) -> None:
        if self._pending and not self._depth and not self._closing and not _under_way():
            raise KeyboardInterrupt

    def _ignored(self, ignored: sys.UnraisableHookArgs) -> None:
        if not (self._pending and issubclass(ignored.exc_type, KeyboardInterrupt)):
            self._print_ignored(ignored)

    def __enter__(self) -> Interrupts:
        self._print_ignored, sys.unraisablehook = sys.unraisablehook, self._ignored
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()  # a SIGALRM without its handler would kill the process
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
        sys.unraisablehook = self._print_ignored

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Postpone interrupts to the end of this block."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._raise_pending()

    def close(self) -> None:
        """From now on signals change nothing: the teardown runs to its end."""
        self._closing = True
        signal.setitimer(signal.ITIMER_REAL, 0)
