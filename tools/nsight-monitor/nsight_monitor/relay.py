# SPDX-License-Identifier: GPL-2.0-only
"""Lines for other processes: for a child without privileges, and for readers that connect to a socket of this
host."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import stat
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

from nsight_record.errors import OutputError

from . import snapshots
from .names import Names
from .snapshots import Snapshot

_MOST_READERS = 16
_KEPT_WINDOWS = 64
#: A reader that accepts no data for this long is disconnected.
_PATIENCE_S = 30.0
#: Size of sun_path in struct sockaddr_un, including the terminating zero.
_SUN_PATH = 108


def named(lines: Iterable[str]) -> Iterator[str]:
    """Adds the names of groups before the first line that has them: readers may lack the privileges to look
    them up."""
    every = iter(lines)
    first = next(every, "")
    yield first
    if not first or not (group_by := snapshots.header(first).group_by):
        yield from every
        return
    names = Names(group_by)
    known: dict[int, str] = {}
    for line in every:
        found = snapshots.other(line) if line.endswith("\n") else None
        if isinstance(found, Snapshot) and (new := names.of(found)) != known:
            known = new
            yield json.dumps({"names": known}) + "\n"
        yield line


class Child:
    """A child process that does ``work`` with the lines, if there is any work."""

    def __init__(self, work: Callable[[Iterable[str]], int]) -> None:
        reads, writes = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                # The child ends with its lines, even if Ctrl-C goes to both processes.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.close(writes)
                with os.fdopen(reads, encoding="utf-8", errors="replace") as lines:
                    first = lines.readline()
                    code = work(itertools.chain([first], lines)) if first else 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(reads)
        self._lines = os.fdopen(writes, "w", encoding="utf-8")
        self._pidfd = os.pidfd_open(self.pid)

    def ended(self) -> bool:
        """Whether it has ended; ``end`` returns its exit code."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def send(self, line: str) -> None:
        """Raises BrokenPipeError if it has ended."""
        self._lines.write(line)
        self._lines.flush()

    def end(self) -> int:
        """Its exit code, once it has read everything."""
        try:
            self._lines.close()
        except BrokenPipeError:
            pass
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


class Relay:
    """A socket at ``path``, for its owner alone. A client that connects gets the header, the last windows and
    names, and the newest sums; then everything that follows. A slow reader misses some sums and gets newer
    ones: they are totals. Raises OutputError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._n, self._ended = 0, False
        self._header = self._names = self._sums = (0, "")
        self._windows: deque[tuple[int, str]] = deque(maxlen=_KEPT_WINDOWS)
        self._readers: list[threading.Thread] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.exists() and stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()  # left over from an earlier run
            umask = os.umask(0o177)
            try:
                with _address(path) as address:
                    self._socket.bind(address)
            finally:
                os.umask(umask)
        except OSError as e:
            raise OutputError(
                f"--listen {path}: {e.strerror or e}",
                "name a socket in a directory that exists; its own name may have 80 bytes",
            ) from e
        self._socket.listen()
        self._socket.settimeout(None)  # with a timeout, shutdown would not wake up accept()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def send(self, line: str) -> None:
        """Send the line to all readers."""
        with self._changed:
            self._n += 1
            mark = (self._n, line)
            if self._n == 1:
                self._header = mark
            elif line.startswith('{"window"'):
                self._windows.append(mark)
            elif line.startswith('{"names"'):
                self._names = mark
            else:
                self._sums = mark
            self._changed.notify_all()

    def close(self) -> None:
        """Returns when every reader has the last line."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes up the accepting thread
        self._accepting.join(_PATIENCE_S)  # the last reader may have connected just now
        self._socket.close()
        self.path.unlink(missing_ok=True)
        for reader in self._readers:
            reader.join(_PATIENCE_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            self._readers = [r for r in self._readers if r.is_alive()]
            if len(self._readers) >= _MOST_READERS:
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._readers.append(thread)

    def _serve(self, connection: socket.socket) -> None:
        seen = 0
        with connection:
            connection.settimeout(_PATIENCE_S)
            while True:
                with self._changed:
                    self._changed.wait_for(lambda n=seen: self._n > n or self._ended)  # type: ignore[misc]
                    marks = [self._header, *self._windows, self._names, self._sums]
                    new, seen_before = "".join(line for n, line in marks if n > seen), seen
                    seen = self._n
                    ended = self._ended
                try:
                    connection.sendall(new.encode())
                except OSError:
                    return  # it has disconnected, or accepts no data
                if ended and seen_before == seen:
                    return


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """``path`` as a socket's address. A path that is too long for the kernel goes through its directory's
    descriptor. Raises OSError."""
    if len(os.fsencode(path)) < _SUN_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def connected(path: Path) -> TextIO | None:
    """Lines of a relay; None if the path is not a socket. Raises OSError."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        with _address(path) as address:
            s.connect(address)
        return s.makefile("r", encoding="utf-8", errors="replace")
