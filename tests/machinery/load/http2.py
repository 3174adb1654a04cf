# SPDX-License-Identifier: GPL-2.0-only
"""Frames of HTTP/2 (RFC 9113), and a client that has many requests in flight on one connection and records their times."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x4, 0x8, 0x20
ACK = 0x1
_INITIAL_WINDOW_SIZE = 4
_WINDOW = (1 << 31) - 1


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """One frame."""
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def get(stream: int, path: str) -> bytes:
    """A request: method, scheme, path and authority, without the dynamic table."""
    fields = b"\x82\x86" + b"".join(
        bytes([name, len(value)]) + value for name, value in ((0x04, path.encode()), (0x01, b"localhost"))
    )
    return frame(HEADERS, stream, fields, END_STREAM | END_HEADERS)


@dataclass
class Answered:
    """When a request was sent and when its reply was complete (CLOCK_MONOTONIC); bytes of all frames of both."""

    path: str
    sent_ns: int
    received_ns: int = 0
    nbytes: int = 0
    reply_nbytes: int = 0


def ask(port: int, paths: list[str], every_s: float, end_s: float) -> dict[int, Answered]:
    """Request the paths one after the other on one connection, without waiting for answers; returns the results by stream.

    Raises TimeoutError when not all were complete within ``end_s``, ConnectionError when the server closes the connection.
    """
    asked: dict[int, Answered] = {}
    with socket.create_connection(("127.0.0.1", port)) as connection, selectors.DefaultSelector() as selector:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        window = frame(SETTINGS, 0, struct.pack("!HI", _INITIAL_WINDOW_SIZE, _WINDOW))
        connection.sendall(PREFACE + window + frame(WINDOW_UPDATE, 0, struct.pack("!I", _WINDOW - 65535)))
        selector.register(connection, selectors.EVENT_READ)
        begin, received, open_ = time.monotonic(), b"", len(paths)
        while open_:
            now = time.monotonic() - begin
            if now > end_s:
                raise TimeoutError(f"{open_} of {len(paths)} requests were not answered")
            if len(asked) < len(paths) and now >= every_s * len(asked):
                stream = 2 * len(asked) + 1
                request = get(stream, paths[len(asked)])
                asked[stream] = Answered(paths[len(asked)], time.monotonic_ns(), nbytes=len(request))
                connection.sendall(request)
            due = every_s * len(asked) - now if len(asked) < len(paths) else 1
            if not selector.select(max(due, 0)):
                continue
            received += (got := connection.recv(1 << 16))
            if not got:
                raise ConnectionError("the server ended the connection")
            at_ns = time.monotonic_ns()
            while len(received) >= 9 and len(received) >= 9 + (n := int.from_bytes(received[:3], "big")):
                kind, flags, stream = received[3], received[4], int.from_bytes(received[5:9], "big")
                received = received[9 + n :]
                if kind == SETTINGS and not flags & ACK:
                    connection.sendall(frame(SETTINGS, 0, flags=ACK))
                if kind in (DATA, HEADERS, CONTINUATION):
                    asked[stream].reply_nbytes += 9 + n
                if kind in (DATA, HEADERS) and flags & END_STREAM:
                    asked[stream].received_ns = at_ns
                    open_ -= 1
    return asked


if __name__ == "__main__":
    import json
    import sys

    found = ask(int(sys.argv[1]), sys.argv[4:], float(sys.argv[2]), float(sys.argv[3]))
    print(json.dumps({stream: vars(of) for stream, of in found.items()}))
