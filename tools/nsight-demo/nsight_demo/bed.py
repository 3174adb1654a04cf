# SPDX-License-Identifier: GPL-2.0-only
"""Namespaces, servers and load programs; all are removed at the end of ``with``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from .interrupts import Interrupts
from .namespaces import RUN_DIR, SERVER4, Link, LinkOptions, clean_stale, require_root, run_dir, run_name
from .processes import Process, prefix, run, wait_until
from .servers import KINDS, USER, ServerKind

LOAD_DIR = Path(__file__).resolve().parents[1] / "load"
LOAD = LOAD_DIR / "build" / "nsight-load"
HOG = LOAD_DIR / "build" / "hog"


class Server:
    """A running server: ``process``, its kind and where it listens."""

    def __init__(self, kind: ServerKind, port: int, process: Process, address: str = SERVER4) -> None:
        self.kind = kind
        self.port = port
        self.address = address
        self.process = process

    @property
    def serving_pid(self) -> int:
        """Process that serves the requests: nginx's worker, else the server itself."""
        return self.process.children()[0] if self.kind.name == "nginx" else self.process.pid


class Bed:
    """Context manager: two namespaces, servers, load; everything is removed afterwards.

    Cores (of two): ``app_cpu`` is for the servers, ``load_cpu`` for the client. On exit, and on SIGINT,
    SIGTERM and SIGHUP, it ends every process that it started, by pid, and deletes its namespaces and
    directory. After a run that was killed with SIGKILL, the next run removes the leftovers; its processes
    died with it.

    >>> with Bed() as bed:                                     # doctest: +SKIP
    ...     server = bed.start_server("memcached")
    ...     load = bed.start_load(server, ["-r", "2000", "-d", "3"], "load.tsv")
    ...     load.wait(120)
    """

    #: Real-time priority of servers, client and NAPI thread.
    fifo: int | None = None
    #: The servers that it can start.
    kinds: ClassVar[Mapping[str, ServerKind]] = KINDS

    def __init__(self, link: LinkOptions | None = None, app_cpu: int = 1, load_cpu: int = 0) -> None:
        self.link_options = link or LinkOptions()
        self.app_cpu = app_cpu
        self.load_cpu = load_cpu
        self.name = run_name()
        self.directory = RUN_DIR / self.name
        self.link = Link(self.name)
        self.interrupts = Interrupts()
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        require_root()
        self._prepare()
        self.interrupts.__enter__()
        try:
            self._wait()
            with self.interrupts.held():
                clean_stale()
                run_dir()
                self.directory.mkdir()
                self.directory.chmod(0o755)
                self.link.create(self.link_options)
                if self.fifo and self.link.napi_tid:
                    os.sched_setscheduler(self.link.napi_tid, os.SCHED_FIFO, os.sched_param(self.fifo))
        except BaseException:
            self._teardown()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._teardown()

    def _prepare(self) -> None:
        build_programs()

    def _wait(self) -> None:
        """Wait until it may begin."""

    def _teardown(self) -> None:
        self.interrupts.close()
        try:
            for process in reversed(self._processes):
                process.stop()
            self.link.delete()
            shutil.rmtree(self.directory, ignore_errors=True)
        finally:
            self.interrupts.__exit__()

    def start(
        self,
        name: str,
        argv: list[str],
        netns: str | None = None,
        cpu: int | None = None,
        user: str | None = None,
        death: str = "KILL",
        on_terminal: bool = False,
        grace_s: float = 3.0,
        fifo: int | None = None,
        creates: Path | None = None,
    ) -> Process:
        """Start a program that ends with the bed at the latest; see ``prefix`` and ``Process``.

        ``creates``: a file that it creates once it handles signals. Returns when the file exists: a program
        that is ended earlier would write no log.
        """
        if creates:
            creates.unlink(missing_ok=True)
        with self.interrupts.held():
            log = None if on_terminal else self.directory / f"{len(self._processes)}-{name}.log"
            process = Process(name, prefix(netns, cpu, user, death, fifo) + argv, log, grace_s)
            self._processes.append(process)

        def created() -> bool:
            if creates and not creates.exists() and process.poll():
                process.check_alive()
            return not creates or creates.exists()

        wait_until(created, f"{name} creating {creates}")
        return process

    def start_server(
        self,
        kind_name: str,
        port: int | None = None,
        cpu: int | None = None,
        options: tuple[str, ...] = (),
    ) -> Server:
        """Start a server in the server namespace and wait until it accepts connections.

        ``port``: by default the server's usual one. ``options`` come after the bed's own.
        """
        kind = self.kinds[kind_name]
        port = port or kind.port
        directory = self.directory / f"{kind_name}-{port}"
        directory.mkdir()
        if kind.prepare:
            kind.prepare(port, directory)
        # The server runs as another user, whatever the umask is.
        directory.chmod(0o755)
        shutil.chown(directory, USER)
        for path in directory.iterdir():
            path.chmod(0o644)
        # TERM, not KILL, when the bed dies: nginx's master ends its workers, too.
        process = self.start(
            kind_name,
            [*kind.argv(port, directory), *options],
            self.link.server,
            self.app_cpu if cpu is None else cpu,
            USER,
            "TERM",
            fifo=self.fifo,
        )

        def listening() -> bool:
            process.check_alive()
            with self.interrupts.held():
                sockets = run(["nsenter", f"--net=/run/netns/{self.link.server}", "--", "ss", "-Hltn"])
            return f"{SERVER4}:{port} " in sockets and (kind_name != "nginx" or bool(process.children()))

        wait_until(listening, f"{kind_name} listening on port {port}")
        return Server(kind, port, process)

    def load_argv(
        self,
        server: Server,
        options: list[str],
        log: Path,
        cpu: int | None = None,
        fifo: int | None = None,
    ) -> list[str]:
        """Command of a load client for ``server``, to be run from anywhere as root.

        ``fifo``: the client's real-time priority, if it differs from the bed's.
        """
        priority = self.fifo if fifo is None else fifo
        head = [*prefix(self.link.client, fifo=priority), str(LOAD), "-s", server.address]
        head += ["-p", str(server.port)]
        chosen = [] if "-P" in options else ["-P", server.kind.protocol]
        pinned = ["-C", str(self.load_cpu if cpu is None else cpu)]
        return head + chosen + pinned + ["-l", str(log)] + options

    def start_load(
        self,
        server: Server,
        options: list[str],
        log: Path,
        cpu: int | None = None,
        fifo: int | None = None,
    ) -> Process:
        """Start a load client in the client namespace; its log is complete when it has ended."""
        argv = self.load_argv(server, options, log, cpu, fifo)
        return self.start("nsight-load", argv, creates=Path(log))


def build_programs() -> None:
    """Build the load client and the hog if a source is newer."""
    run(["make", "-s", "-C", str(LOAD_DIR)])


def on_path(program: str) -> bool:
    """True when ``program`` can be started."""
    return shutil.which(program) is not None or shutil.which(program, path="/usr/sbin:/sbin") is not None
