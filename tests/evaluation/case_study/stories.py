# SPDX-License-Identifier: GPL-2.0-only
"""The stories: a server, the fault in how it is run, and the change after each diagnosis.

Two cores: servers run on core 1, clients on core 0. The client whose latency is measured runs
at real-time priority, so that nothing on its own core adds to the server's latency.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machinery.testbed.bed import Server, Testbed
from nsight_demo.processes import run, wait_until
from nsight_demo.servers import ServerKind

APP_CPU, LOAD_CPU = 1, 0
Start = Callable[[Testbed, int], Server]


@dataclass(frozen=True)
class Setup:
    """One configuration of a story.

    ``change``: what was changed from the previous setup, and why. ``start`` starts everything
    except the measured client, with the server on the given port. ``client``: options of that client that
    the setup changes.
    """

    name: str
    change: str
    start: Start
    client: tuple[str, ...] = ()


@dataclass(frozen=True)
class Story:
    """``port``: the server's usual one. ``programs``: programs that must be installed. ``client``: load whose latency counts.

    ``record``: options for nsight-record.
    """

    name: str
    about: str
    port: int
    programs: tuple[str, ...]
    client: tuple[str, ...]
    setups: tuple[Setup, ...]
    record: tuple[str, ...] = ()


def idle_priority(pid: int) -> None:
    """Put every thread of a process into SCHED_IDLE: it runs only when no other task needs the core."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        os.sched_setscheduler(int(tid), os.SCHED_IDLE, os.sched_param(0))


def background(bed: Testbed, server: Server, options: list[str], name: str) -> None:
    """A second client, whose latency does not count, at normal priority."""
    bed.start_load(server, ["-d", "3600", *options], Path(bed.directory / f"{name}.tsv"))


# memcached beside nginx. A page of 400 kB, written in pieces as the client takes them, keeps nginx on a
# core for milliseconds; 40 bursts of pages per second take about 40 % of it.
PAGES = ["-r", "20", "--burst", "6", "--burst-every", "40", "--path", "/big.html"]
# One client that pipelines: 60 requests for 20 kB in one write, on one connection.
GREEDY = ["-r", "1", "--burst", "60", "--burst-every", "20", "--burst-value-size", "20000"]


def memcached_beside_nginx(options: tuple[str, ...], nginx_cpu: int) -> Start:
    """memcached on the servers' core, a pipelining client, and nginx under load on ``nginx_cpu``."""

    def start(bed: Testbed, port: int) -> Server:
        server = bed.start_server("memcached", port, options=options)
        other = bed.start_server("nginx", cpu=nginx_cpu)
        background(bed, other, PAGES, "pages")
        background(bed, server, GREEDY, "greedy")
        return server

    return start


MEMCACHED = Story(
    "memcached",
    "memcached and nginx share a core; one client of memcached pipelines its requests",
    11211,
    ("memcached", "nginx"),
    ("-c", "8", "-r", "2000"),
    (
        Setup("initial", "", memcached_beside_nginx((), APP_CPU)),
        Setup(
            "split",
            "nginx moved to the other core (taskset): the two no longer take turns",
            memcached_beside_nginx((), LOAD_CPU),
        ),
        Setup(
            "limited",
            "memcached answers 2 requests of a connection, not 20, before it looks at the next one (-R 2)",
            memcached_beside_nginx(("-R", "2"), LOAD_CPU),
        ),
    ),
)


# Keys of other users of the same redis, which the monitoring script must scan too.
KEYS = "DEBUG", "POPULATE", "20000", "key", "500"


def redis_with_monitor(options: tuple[str, ...], how: str) -> Start:
    """redis with 20,000 keys and a monitoring script that counts some of them."""

    def start(bed: Testbed, port: int) -> Server:
        server = bed.start_server("redis", port, options=("--enable-debug-command", "yes", *options))
        ask_redis(bed, server, *KEYS)
        script = Path(__file__).with_name("redis_monitor.py")
        argv = [sys.executable, str(script), server.address, str(server.port), how]
        bed.start("monitor", argv, bed.link.client, LOAD_CPU)
        return server

    return start


def ask_redis(bed: Testbed, server: Server, *words: str) -> str:
    """One command, from the client's namespace."""
    enter = ["nsenter", f"--net=/run/netns/{bed.link.client}", "--"]
    return run([*enter, "redis-cli", "-h", server.address, "-p", str(server.port), *words])


REDIS = Story(
    "redis",
    "redis saves a snapshot every second, and a monitoring script counts keys with KEYS",
    6379,
    ("redis-server", "redis-cli"),
    ("-c", "8", "-r", "2000"),
    (
        Setup("initial", "", redis_with_monitor((), "keys")),
        Setup(
            "snapshot apart",
            "the process that writes the snapshot runs on the other core (bgsave_cpulist 0)",
            redis_with_monitor(("--bgsave_cpulist", "0"), "keys"),
        ),
        Setup(
            "scan",
            "the monitoring script counts with SCAN, 50 keys a command, not with one KEYS",
            redis_with_monitor(("--bgsave_cpulist", "0"), "scan"),
        ),
    ),
)


LWIP_ADDRESS, TAP_ADDRESS, LWIP_PORT = "198.18.78.1", "198.18.78.2", 7777
LWIP_SERVER = Path(__file__).with_name("build") / "lwip-server"
# Debian's lwIP 2.1.3 writes beyond its buffers (616 bytes, including their header) when it gets longer frames.
TAP_MTU = "576"
# One client that pipelines: 16 requests of 500 bytes at once; or as many, but 4 at once.
GREEDY_ECHO = ["-r", "1", "--burst", "16", "--burst-every", "40", "--burst-value-size", "500"]
MODEST_ECHO = ["-r", "1", "--burst", "4", "--burst-every", "10", "--burst-value-size", "500"]


def start_lwip(bed: Testbed, port: int, turn: int) -> Server:
    """The echo server, behind a tap device in the client's namespace: no other part of the kernel is in between."""
    tap, there = f"tap{os.getpid()}", bed.link.client
    for words in (
        ["tuntap", "add", "dev", tap, "mode", "tap"],
        ["addr", "add", f"{TAP_ADDRESS}/24", "dev", tap],
        ["link", "set", tap, "mtu", TAP_MTU, "up"],
    ):
        run(["ip", "-n", there, *words])
    argv = ["env", f"PRECONFIGURED_TAPIF={tap}", str(LWIP_SERVER), LWIP_ADDRESS, TAP_ADDRESS]
    argv += [str(port), str(turn)]
    process = bed.start("lwip-server", argv, there, APP_CPU, fifo=bed.fifo)
    wait_until(lambda: "ready" in process.output(), "lwip-server ready")
    kind = ServerKind("lwip", LWIP_PORT, "echo", "none", lambda _port, _directory: argv, "lwip-server")
    return Server(kind, port, process, LWIP_ADDRESS)


def lwip_beside_nginx(turn: int, nginx_cpu: int, pipelining: list[str] = GREEDY_ECHO) -> Start:
    """An echo server on lwIP, a pipelining client, and nginx under load on ``nginx_cpu``."""

    def start(bed: Testbed, port: int) -> Server:
        server = start_lwip(bed, port, turn)
        other = bed.start_server("nginx", cpu=nginx_cpu)
        background(bed, other, PAGES, "pages")
        background(bed, server, pipelining, "greedy")
        return server

    return start


USER_STACK = Story(
    "user-stack",
    "a server whose TCP is lwIP, a library of the process: no socket of the kernel, no kernel boundary",
    LWIP_PORT,
    ("nginx",),
    ("-c", "8", "-r", "1000"),
    (
        Setup("initial", "", lwip_beside_nginx(30, APP_CPU)),
        Setup("split", "nginx moved to the other core (taskset)", lwip_beside_nginx(30, LOAD_CPU)),
        Setup(
            "limited",
            "the server answers 2 pieces of a connection, not 30, before it looks at the next one",
            lwip_beside_nginx(2, LOAD_CPU),
        ),
        Setup(
            "fewer at once",
            "the client that pipelines writes 4 requests at once, not 16, and four times as often",
            lwip_beside_nginx(2, LOAD_CPU, MODEST_ECHO),
        ),
    ),
    record=("--lwip",),
)

STORIES = {story.name: story for story in (MEMCACHED, REDIS, USER_STACK)}
