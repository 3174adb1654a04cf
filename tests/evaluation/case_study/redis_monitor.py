#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""A badly written monitoring script: counts keys by KEYS, and requests a snapshot every second.

    redis_monitor.py ADDRESS PORT keys|scan

``keys``: one KEYS command over all keys; ``scan``: the same count by SCAN, 50 keys per command.
"""

from __future__ import annotations

import socket
import sys
import time

PATTERN = b"session:*"
EVERY_S = 0.05
SNAPSHOT_EVERY_S = 1.0


class Redis:
    """Just enough of the protocol."""

    def __init__(self, address: str, port: int) -> None:
        self._file = socket.create_connection((address, port)).makefile("rwb")

    def ask(self, *words: bytes) -> object:
        """Send a command; returns its answer, errors as text."""
        self._file.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        self._file.flush()
        return self._answer()

    def _answer(self) -> object:
        line = self._file.readline()
        if not line:
            raise ConnectionError("redis closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self._file.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
        if kind == b"*":
            return [self._answer() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest


def count(redis: Redis, how: str) -> int:
    """Number of keys that match."""
    if how == "keys":
        found = redis.ask(b"KEYS", PATTERN)
        assert isinstance(found, list)
        return len(found)
    n, cursor = 0, b"0"
    while True:
        answer = redis.ask(b"SCAN", cursor, b"MATCH", PATTERN, b"COUNT", b"50")
        assert isinstance(answer, list)
        cursor, found = answer
        n += len(found)
        if cursor == b"0":
            return n


def main() -> None:
    """Run until killed."""
    redis = Redis(sys.argv[1], int(sys.argv[2]))
    snapshot = time.monotonic()
    while True:
        count(redis, sys.argv[3])
        if time.monotonic() > snapshot:
            redis.ask(b"BGSAVE")  # refused while one runs, which has the same effect
            snapshot = time.monotonic() + SNAPSHOT_EVERY_S
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
