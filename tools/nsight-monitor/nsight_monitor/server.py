# SPDX-License-Identifier: GPL-2.0-only
"""Answers scrapes: a small HTTP server, with TLS and passwords if --web-config has them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nsight_record.errors import OutputError

from .web_config import WebConfig

#: Maximum number of connections at once; further ones are closed unanswered. An idle one is closed after the
#: second value, and each one after the third, whatever it sends: clients that send a byte now and then would
#: otherwise keep all others out.
MOST_CONNECTIONS, PATIENCE_S, LONGEST_S = 128, 10.0, 30.0
_PAGE = b"<!DOCTYPE html><title>nsight-monitor</title><a href=metrics>metrics</a>\n"

#: From an Accept header: body and content type.
Answer = Callable[[str], tuple[bytes, str]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, where: tuple[str, int], answer: Answer, config: WebConfig) -> None:
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        self.answer, self.config = answer, config
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._ends: dict[socket.socket, float] = {}
        super().__init__(where, _Handler)

    def server_bind(self) -> None:
        """Without the host name look-up that http.server does."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Each in its own thread, while there are not too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Like the library's method."""
        self._ends[request] = time.monotonic() + LONGEST_S
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ends.pop(request, None)
            self._free.release()

    def service_actions(self) -> None:
        """Every half a second: end connections that last too long."""
        now = time.monotonic()
        for connection in [c for c, end in self._ends.copy().items() if end < now]:
            with contextlib.suppress(OSError):  # TLS's own shutdown would change what its thread uses
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """TLS begins here, in the connection's own thread, so that a slow client delays nobody."""
        if not self.config.tls:
            super().finish_request(request, client_address)
            return
        request.settimeout(PATIENCE_S)
        with self.config.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secure:
            self._ends[secure] = self._ends.pop(request)
            try:
                secure.do_handshake()
                super().finish_request(secure, client_address)
            finally:
                del self._ends[secure]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects, or does not use TLS, is not an error here."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE_S
    server_version, sys_version = "nsight-monitor", ""

    def do_GET(self) -> None:
        """/metrics, and a page that names it."""
        if not self.server.config.admits(self.headers.get("Authorization", "")):
            self._send(401, b"Unauthorized\n", "text/plain", {"WWW-Authenticate": "Basic"})
            return
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body, kind = self.server.answer(self.headers.get("Accept", ""))
            self._send(200, body, kind)
        elif path == "/":
            self._send(200, _PAGE, "text/html; charset=utf-8")
        else:
            self._send(404, b"Not Found\n", "text/plain")

    def _send(self, code: int, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


def serve(answer: Answer, where: tuple[str, int], config: WebConfig) -> int:
    """Serve from a separate thread; returns the port. Raises OutputError."""
    try:
        server = _Server(where, answer, config)
    except OSError as e:
        raise OutputError(
            f"--prometheus {where[0]}:{where[1]}: {e.strerror}",
            "another program has the port: take another one",
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port
