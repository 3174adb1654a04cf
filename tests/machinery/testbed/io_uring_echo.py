# SPDX-License-Identifier: GPL-2.0-only
"""A server that answers each message with its bytes. Workers of io_uring read and send for it, threads without a system call.

python io_uring_echo.py PORT        prints "ready" when it accepts connections; ends with its first connection
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import sys

SETUP, ENTER = 425, 426
OP_SEND, OP_RECV = 26, 27
ASYNC = 1 << 4  # IOSQE_ASYNC: a worker does it, even if it would not block
GETEVENTS = 1
SQES_AT = 0x10000000
ENTRIES = 4

_libc = ctypes.CDLL(None, use_errno=True)


def _call(*argv: object) -> int:
    got = _libc.syscall(*argv)
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(got)


class Ring:
    """One request at a time."""

    def __init__(self) -> None:
        params = ctypes.create_string_buffer(120)
        self._fd = _call(SETUP, ENTRIES, params)
        sq, cq = struct.unpack_from("<7I", params, 40), struct.unpack_from("<6I", params, 80)
        self._tail, self._array = sq[1], sq[6]
        self._cq_head, self._cqes = cq[0], cq[5]
        n_cq = struct.unpack_from("<I", params, 4)[0]
        self._ring = mmap.mmap(self._fd, max(self._array + 4 * ENTRIES, self._cqes + 16 * n_cq))
        self._cq_mask = struct.unpack_from("<I", self._ring, cq[2])[0]
        self._sqes = mmap.mmap(self._fd, 64 * ENTRIES, offset=SQES_AT)
        self._n = 0

    def run(self, opcode: int, fd: int, buffer: ctypes.Array, size: int) -> int:
        """Result of the request: bytes, 0 at the end of a connection, or a negative error."""
        place = self._n % ENTRIES
        sqe = struct.pack("<BBHiQQII", opcode, ASYNC, 0, fd, 0, ctypes.addressof(buffer), size, 0)
        self._sqes[64 * place : 64 * place + 64] = sqe.ljust(64, b"\0")
        struct.pack_into("<I", self._ring, self._array + 4 * place, place)
        struct.pack_into("<I", self._ring, self._tail, self._n + 1)
        _call(ENTER, self._fd, 1, 1, GETEVENTS, None, 0)
        at = self._cqes + 16 * (self._n & self._cq_mask)
        self._n += 1
        struct.pack_into("<I", self._ring, self._cq_head, self._n)
        return int(struct.unpack_from("<Qi", self._ring, at)[1])


def main() -> None:
    """Serve one connection."""
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    ring = Ring()
    print("ready", flush=True)
    connection, _ = listener.accept()
    buffer = ctypes.create_string_buffer(1 << 16)
    while (n := ring.run(OP_RECV, connection.fileno(), buffer, len(buffer))) > 0:
        ring.run(OP_SEND, connection.fileno(), buffer, n)


if __name__ == "__main__":
    main()
