# SPDX-License-Identifier: GPL-2.0-only
"""Ports that no other test run on this machine uses.

Probes see every network namespace of the machine. A recording of ``--port 11211`` would also contain the messages of
another run's memcached, although that one listens in its own namespace.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator

from nsight_demo.namespaces import run_dir
from nsight_demo.processes import BedError

from .locks import LockFile

# Below the ports that the kernel gives to clients (32768 and up): client ports are filtered like server ports. Scenarios
# bind their own clients to ports from 20000 on.
LOW, HIGH = 10_000, 20_000
_FAMILIES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Port:
    """``number`` is this process's until ``release``, or until the process ends."""

    def __init__(self) -> None:
        self._locks = LockFile(run_dir() / "ports")
        first = random.SystemRandom().randrange(LOW, HIGH)
        for number in (*range(first, HIGH), *range(LOW, first)):
            if self._locks.take(number):
                if _is_free_here(number):
                    self.number = number
                    return
                self._locks.give(number)
        self._locks.close()
        raise BedError(f"no port from {LOW} to {HIGH - 1} is free")

    def release(self) -> None:
        """Release the port: others may reserve it from now on."""
        self._locks.close()


@contextlib.contextmanager
def reserved(n: int = 1) -> Iterator[list[int]]:
    """``n`` ports reserved for the caller while inside.

    >>> with reserved(2) as (port, other):                     # doctest: +SKIP
    ...     assert port != other
    """
    with contextlib.ExitStack() as stack:
        ports = [Port() for _ in range(n)]
        for port in ports:
            stack.callback(port.release)
        yield [port.number for port in ports]


def _is_free_here(number: int) -> bool:
    """Whether a server could listen on it in this namespace, which is shared with programs that do not use the locks."""
    for family, address in _FAMILIES:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as sock:
                    sock.bind((address, number))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # no IPv6 here
                    return False
    return True
