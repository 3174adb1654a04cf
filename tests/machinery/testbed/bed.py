# SPDX-License-Identifier: GPL-2.0-only
"""The demo's testbed for runs that share a machine: unique ports, and one measurement at a time."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from nsight_demo import bed
from nsight_demo.bed import HOG, LOAD, Server, on_path
from nsight_demo.namespaces import SERVER4, LinkOptions
from nsight_demo.processes import BedError, prefix, run
from nsight_demo.servers import KINDS, ServerKind

from ..harness import built
from . import acceptor, echo_servers
from .ports import Port
from .turn import turn

LOAD_DIR = Path(__file__).resolve().parents[1] / "load"
FLOOD = LOAD_DIR / "build" / "flood"
GAPS = LOAD_DIR / "build" / "gaps"
# Below the priority of the disturbances (hog --fifo 10), above all normal priorities.
FIFO = 1


def _acceptor(port: int, directory: Path) -> list[str]:
    return ["/usr/bin/python3", str(directory / "acceptor.py"), "serve", SERVER4, str(port), str(directory)]


def _echo(kind: str, port: int, protocol: str = "echo") -> ServerKind:
    def argv(port: int, directory: Path) -> list[str]:
        return [
            "/usr/bin/python3",
            str(directory / "echo_servers.py"),
            kind,
            SERVER4,
            str(port),
            str(directory),
        ]

    return ServerKind(kind, port, protocol, "none", argv, "python3", echo_servers.prepare)


def _four_threads(port: int, directory: Path) -> list[str]:
    return [*KINDS["memcached"].argv(port, directory), "-t", "4"]


class Testbed(bed.Bed):
    """``realtime``: servers, client and NAPI thread run at real-time priority FIFO, so that
    programs outside the testbed add no delays to the measurement. Such a testbed measures,
    so it takes the machine's turn: it waits until no other run measures.
    """

    __test__ = False  # not a test, whatever pytest thinks of the name
    kinds: ClassVar[Mapping[str, ServerKind]] = {
        **KINDS,
        "acceptor": ServerKind("acceptor", 7000, "echo", "none", _acceptor, "python3", acceptor.prepare),
        "asyncio": _echo("asyncio", 7001),
        "datagrams": _echo("datagrams", 7002, "echo-udp"),
        "front": _echo("front", 7003),
        "memcached-4": ServerKind("memcached-4", 11212, "memcached", "memcached", _four_threads, "mc-worker"),
    }

    def __init__(
        self, link: LinkOptions | None = None, app_cpu: int = 1, load_cpu: int = 0, realtime: bool = False
    ) -> None:
        super().__init__(link, app_cpu, load_cpu)
        self.fifo = FIFO if realtime else None
        self._ports: list[Port] = []
        self._turn = contextlib.ExitStack()

    def _prepare(self) -> None:
        build_programs()

    def _wait(self) -> None:
        if self.fifo:
            self._turn.enter_context(turn())

    def _teardown(self) -> None:
        try:
            super()._teardown()
        finally:
            for port in self._ports:
                port.release()
            self._turn.close()

    def reserve_port(self) -> int:
        """A port that no other run on this machine uses while this testbed lives."""
        with self.interrupts.held():
            self._ports.append(Port())
        return self._ports[-1].number

    def start_server(
        self, kind_name: str, port: int | None = None, cpu: int | None = None, options: tuple[str, ...] = ()
    ) -> Server:
        """Like the demo's method; ``port``: one that the caller reserved, or that need not be unique on the machine; by
        default the testbed reserves one."""
        return super().start_server(kind_name, port or self.reserve_port(), cpu, options)

    def load_argv(
        self,
        server: Server,
        options: list[str],
        log: Path,
        cpu: int | None = None,
        fifo: int | None = None,
    ) -> list[str]:
        """Like the demo's method; the acceptor has a client of its own."""
        if server.kind.name != "acceptor":
            return super().load_argv(server, options, log, cpu, fifo)
        head = prefix(self.link.client, fifo=self.fifo if fifo is None else fifo)
        pinned = ["-C", str(self.load_cpu if cpu is None else cpu)]
        ask = ["/usr/bin/python3", acceptor.__file__, "ask", server.address, str(server.port)]
        return [*head, *ask, *pinned, "-l", str(log), *options]

    def ask_memcached(self, server: Server, command: str) -> str:
        """The answer to ``command`` of memcached's text protocol, sent from within the server's namespace."""
        # -t: how long to wait for the end of the answer, which is the end of the connection.
        out = run(
            ["nsenter", f"--net=/run/netns/{self.link.server}", "--", "socat", "-t60", "-",
             f"TCP:{SERVER4}:{server.port}"],
            stdin=command + "\r\nquit\r\n",
        )  # fmt: skip
        return out.replace("\r", "")


def build_programs() -> None:
    """Build the load client, the hog, the flood and the batches if a source is newer."""
    for directory in (bed.LOAD_DIR, LOAD_DIR):
        try:
            built.make(directory)
        except subprocess.CalledProcessError as error:
            raise BedError(f"{error}") from error


__all__ = [
    "FLOOD",
    "GAPS",
    "HOG",
    "LOAD",
    "LOAD_DIR",
    "BedError",
    "Server",
    "Testbed",
    "build_programs",
    "on_path",
]
