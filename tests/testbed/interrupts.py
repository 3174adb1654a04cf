# SPDX-License-Identifier: GPL-2.0-only
"""Ctrl-C and SIGTERM at any moment, without losing track of what was just created."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt, but never inside ``held()``.

    A signal between creating a namespace and noting that it exists would leave it behind;
    a second Ctrl-C during the teardown would too. Inside ``held()`` a signal only leaves a
    mark, and the interrupt follows when the outermost block ends. A blocked signal mask
    would do the same but is inherited by every child.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._pending = False
        self._closing = False
        self._previous: dict[int, object] = {}

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._depth or self._closing:
            self._pending = True
        else:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Postpone interrupts to the end of this block."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._pending and not self._depth and not self._closing:
                self._pending = False
                raise KeyboardInterrupt

    def close(self) -> None:
        """From now on signals change nothing: the teardown runs to its end."""
        self._closing = True
