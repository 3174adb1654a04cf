# SPDX-License-Identifier: GPL-2.0-only
"""Lines for other processes: for the exporter, which has no privileges, and for readers that connect to a socket of this
host."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from nsight_record import service
from nsight_record.errors import OutputError

from . import snapshots
from .names import Names
from .snapshots import Snapshot

_MOST_READERS = 16
_KEPT_WINDOWS = 64
#: A reader that accepts no data for this long is disconnected, so that another one gets its place. systemd connects the exporter
#: before it starts, and on a slow, busy machine that takes minutes: it reads nothing meanwhile.
_PATIENCE_S = 600.0
#: At the end, readers have this long to accept the last line.
_END_S = 30.0
#: A child that is killed is started again this long after its last start; twice as long each time, up to the second
#: number of seconds. One that ran longer than that begins with the first number again.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
#: Size of sun_path in struct sockaddr_un, including the terminating zero.
_SUN_PATH = 108


def named(lines: Iterable[str]) -> Iterator[str]:
    """Adds the names of groups before the first line that has them: readers may lack the privileges to look
    them up."""
    every = iter(lines)
    first = next(every, "")
    if not first:  # the programs were not attached
        return
    yield first
    if not (group_by := snapshots.header(first).group_by):
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


class Kept:
    """What a reader that comes late gets: the header, the last windows and names, the newest sums."""

    def __init__(self) -> None:
        self.n = 0
        self._header = self._names = self._sums = (0, "")
        self._windows: deque[tuple[int, str]] = deque(maxlen=_KEPT_WINDOWS)

    def add(self, line: str) -> None:
        """The next line."""
        self.n += 1
        mark = (self.n, line)
        if self.n == 1:
            self._header = mark
        elif line.startswith('{"window"'):
            self._windows.append(mark)
        elif line.startswith('{"names"'):
            self._names = mark
        else:
            self._sums = mark

    def after(self, seen: int) -> str:
        """The lines after the first ``seen``, except lines that newer ones replace."""
        marks = [self._header, *self._windows, self._names, self._sums]
        return "".join(line for n, line in marks if n > seen)


class Child:
    """Another process that reads the lines from its standard input. If it is killed, it is started again, and
    gets what a reader that comes late gets, and how often it was started again. If it ran less than ``wait_s``,
    the next line after that time starts it."""

    def __init__(self, argv: Sequence[str], wait_s: float = _FIRST_WAIT_S) -> None:
        self._argv, self._wait_s, self._first_wait_s = argv, wait_s, wait_s
        self._kept = Kept()
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._starting = 0.0, False
        self._restarts = 0

    def send(self, line: str) -> None:
        """The first line starts it. Raises BrokenPipeError if it has ended by itself."""
        self._kept.add(line)
        if self._process is None:
            self._start()
        elif not self._write(line) and not self.lives():
            raise BrokenPipeError

    def lives(self) -> bool:
        """Whether it has not ended by itself; starts it again if it was killed, unless that is too soon.
        SIGCHLD's handler may call it at any time."""
        if self._process is None or self._starting or (code := self._process.poll()) is None:
            return True
        if code >= 0:
            return False
        ran = time.monotonic() - self._began
        if ran < self._wait_s:
            return True
        self._wait_s = self._first_wait_s if ran > _LONGEST_WAIT_S else min(2 * self._wait_s, _LONGEST_WAIT_S)
        self._restarts += 1
        # Not print(): the signal's handler may interrupt another one.
        os.write(2, f"the exporter was killed (signal {-code}), and is started again\n".encode())
        self._start()
        return self.lives()

    def _start(self) -> None:
        self._starting = True
        # In its own session, so that Ctrl-C reaches it only through this process: it ends with its lines.
        self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
        self._began, self._starting = time.monotonic(), False
        self._write(self._kept.after(0) + json.dumps({"exporter_restarts": self._restarts}) + "\n")

    def _write(self, text: str) -> bool:
        """False: it reads no more. Meanwhile, the signal's handler may put another process in its place."""
        assert self._process and self._process.stdin
        pipe, rest = self._process.stdin, memoryview(text.encode())
        try:
            while rest:
                rest = rest[pipe.write(rest) :]
        except BrokenPipeError:
            return False
        return True

    def end(self) -> int:
        """Its exit code, once it has read everything. Raises OutputError if it was killed."""
        if self._process is None:
            return 0
        assert self._process.stdin
        self._process.stdin.close()
        if (code := self._process.wait()) < 0:
            raise OutputError(
                f"the exporter was killed (signal {-code})",
                "dmesg shows whether there was too little memory",
            )
        return code


class Relay:
    """A socket at ``path``, for its owner alone. A client that connects gets the header, the last windows and
    names, and the newest sums; then everything that follows. A slow reader misses some sums and gets newer
    ones: they are totals. Raises OutputError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._kept, self._ended = Kept(), False
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
        """Send the line to all readers. The first one comes when the programs are attached."""
        with self._changed:
            self._kept.add(line)
            self._changed.notify_all()
        if self._kept.n == 1:
            service.ready()

    def close(self) -> None:
        """Returns when every reader has the last line."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes up the accepting thread
        self._accepting.join(_END_S)  # the last reader may have connected just now
        self._socket.close()
        self.path.unlink(missing_ok=True)
        for reader in self._readers:
            reader.join(_END_S)

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
                    self._changed.wait_for(lambda n=seen: self._kept.n > n or self._ended)  # type: ignore[misc]
                    new, seen_before = self._kept.after(seen), seen
                    seen = self._kept.n
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
