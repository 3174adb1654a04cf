# SPDX-License-Identifier: GPL-2.0-only
"""Unmodified servers as the testbed runs them: one worker, no persistence, one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .namespaces import SERVER4, SERVER6

USER = "nobody"


@dataclass(frozen=True)
class ServerKind:
    """How to start one kind of server, and the load client's name for its protocol.

    ``port``: its usual one; nothing else on the machine listens there or is recorded.
    """

    name: str
    port: int
    protocol: str
    framing: str
    argv: Callable[[int, Path], list[str]]
    comm: str  # of the thread that serves
    prepare: Callable[[int, Path], None] | None = None


def _memcached(port: int, directory: Path) -> list[str]:
    return ["memcached", "-l", f"{SERVER4},{SERVER6}", "-p", str(port), "-U", str(port), "-t", "1", "-m", "512",
            "-I", "2m"]  # fmt: skip


def _redis(port: int, directory: Path) -> list[str]:
    return ["redis-server", "--bind", SERVER4, SERVER6, "--port", str(port), "--save", "", "--appendonly", "no",
            "--protected-mode", "no", "--dir", str(directory)]  # fmt: skip


_NGINX_CONF = """\
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 600;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen {v4}:{port};
        listen [{v6}]:{port};
        root {directory};
    }}
}}
"""


def _prepare_nginx(port: int, directory: Path) -> None:
    conf = _NGINX_CONF.format(directory=directory, port=port, v4=SERVER4, v6=SERVER6)
    (directory / "nginx.conf").write_text(conf)
    (directory / "index.html").write_text("<p>" + "x" * 500 + "\n")
    (directory / "big.html").write_text("x" * 400_000)


def _nginx(port: int, directory: Path) -> list[str]:
    return ["nginx", "-e", "stderr", "-p", str(directory), "-c", str(directory / "nginx.conf")]


KINDS = {
    "memcached": ServerKind("memcached", 11211, "memcached", "memcached", _memcached, "mc-worker"),
    "redis": ServerKind("redis", 6379, "redis", "redis", _redis, "redis-server"),
    "nginx": ServerKind("nginx", 8080, "http", "http", _nginx, "nginx", _prepare_nginx),
}
