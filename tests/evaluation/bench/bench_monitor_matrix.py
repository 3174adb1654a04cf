#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Overhead of nsight-monitor on web servers: nginx and Apache, by concurrency and size of the reply, 32 workloads.

    .venv/bin/python tests/evaluation/bench/bench_monitor_matrix.py [--rounds N] [--seconds N] [-o FILE]

One worker of the server runs on core 1, the client (closed loop) and the loader on core 0, in two namespaces joined by veth. In each
round a workload runs with all default stages for the whole machine, and twice without a monitor, in random order; requests/s, p99 and
processor time a request (of server and client, including the kernel's work for them) are ratios to the mean of the two. noise is the
ratio of these two to each other, of the requests/s and of the processor time: a figure within it shows nothing. On a machine with
other work, only the processor time is of use. All are medians over the rounds. At the end, medians over the workloads with their
quartiles, and the goal of at least 0.99 of the requests/s.

Needs root, nginx and apache2-bin. Exit codes: 0 the goal is met, 1 it is missed or a program failed, 2 usage, 4 not root.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from bench_monitor_groups import PROGRAM, watched  # noqa: E402
from machinery.harness import private  # noqa: E402
from machinery.testbed.bed import Server, Testbed, on_path  # noqa: E402
from nsight_demo.logs import read_load  # noqa: E402
from nsight_demo.namespaces import SERVER4  # noqa: E402
from nsight_demo.processes import BedError, run, wait_until  # noqa: E402
from nsight_demo.servers import KINDS, USER  # noqa: E402
from recorder_figures import Goal, figures  # noqa: E402

CONNECTIONS, BYTES = (1, 8, 50, 200), (100, 1_000, 10_000, 100_000)
WARM_UP_S, THROUGHPUT_LEAST = 0.1, 0.99
ABSENT, AGAIN, MONITORED = "absent", "absent again", "monitored"
APACHE = """\
ServerRoot {directory}
DefaultRuntimeDir {directory}
PidFile {directory}/apache.pid
ErrorLog {directory}/error.log
ServerName localhost
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
StartServers 1
ServerLimit 1
ThreadLimit 256
ThreadsPerChild 256
MaxRequestWorkers 256
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 600
Listen {address}:{port}
DocumentRoot {directory}
<Directory {directory}>
Require all granted
</Directory>
"""


@dataclass(frozen=True)
class Cell:
    """A workload, and medians over the rounds: requests/s and us of processors a request without a monitor, and ratios."""

    server: str
    connections: int
    bytes: int
    absent: float
    absent_us: float
    rate: float
    p99: float
    cpu: float
    rate_noise: float
    cpu_noise: float

    def __str__(self) -> str:
        return (
            f"{self.server:8} {self.connections:11} {self.bytes:9,} {self.absent:11,.0f} {self.absent_us:9.1f} {self.rate:13.3f} "
            f"{self.p99:7.3f} {self.cpu:7.3f}   {self.rate_noise:.3f} {self.cpu_noise:.3f}"
        )


HEAD = (
    f"{'server':8} {'connections':>11} {'bytes':>9} {'requests/s':>11} {'us of CPU':>9} {'x requests/s':>13} "
    f"{'x p99':>7} {'x CPU':>7}   noise"
)


def _pages(directory: Path) -> None:
    for size in BYTES:
        page = directory / f"{size}.html"
        page.write_text("x" * size)
        page.chmod(0o644)


def nginx(bed: Testbed) -> Server:
    """With a page of each size."""
    server = bed.start_server("nginx")
    _pages(bed.directory / f"nginx-{server.port}")
    return server


def apache(bed: Testbed) -> Server:
    """One child with a thread for each connection, like nginx's one worker."""
    port, directory = bed.reserve_port(), bed.directory / "apache"
    directory.mkdir()
    (directory / "apache.conf").write_text(APACHE.format(directory=directory, address=SERVER4, port=port))
    _pages(directory)
    os.chown(directory, 65534, 65534)
    directory.chmod(0o755)
    argv = ["/usr/sbin/apache2", "-D", "FOREGROUND", "-f", str(directory / "apache.conf")]
    process = bed.start("apache2", argv, bed.link.server, bed.app_cpu, USER, "TERM")

    def listening() -> bool:
        process.check_alive()
        found = run(["nsenter", f"--net=/run/netns/{bed.link.server}", "--", "ss", "-Hltn"])
        return f"{SERVER4}:{port} " in found

    wait_until(listening, "apache2 listening")
    return Server(KINDS["nginx"], port, process)


SERVERS: dict[str, Callable[[Testbed], Server]] = {"nginx": nginx, "apache2": apache}


def cpu_ns(server: Server) -> int:
    """What the server's threads used so far."""
    pids = [server.process.pid, *server.process.children()]
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def client_cpu_ns() -> int:
    """What the clients that have ended used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((used.ru_utime + used.ru_stime) * 1e9)


def loaded(bed: Testbed, server: Server, connections: int, size: int, seconds: float) -> dict[str, Any]:
    """Figures of one closed loop."""
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as name:
        log = Path(name, "load.tsv")
        options = [
            "-c",
            str(connections),
            "-w",
            str(WARM_UP_S),
            "-d",
            str(seconds),
            "--path",
            f"/{size}.html",
        ]
        before = cpu_ns(server) + client_cpu_ns()
        client = bed.start_load(server, options, log)
        if client.wait():
            raise BedError(f"nsight-load failed: {client.output()}")
        used = cpu_ns(server) + client_cpu_ns() - before
        rows = read_load(log)
        return {**figures(rows), "cpu": used / len(rows) / 1000}


def cell(
    bed: Testbed,
    kind: str,
    server: Server,
    load: tuple[int, int],
    draw: random.Random,
    args: argparse.Namespace,
) -> Cell:
    """All rounds of one workload."""
    rounds: list[dict[str, dict[str, Any]]] = []
    for _ in range(args.rounds):
        of = {}
        for state in draw.sample((ABSENT, AGAIN, MONITORED), 3):
            with watched([str(PROGRAM)] if state == MONITORED else None):
                of[state] = loaded(bed, server, *load, args.seconds)
        rounds.append(of)

    def median(figure: str, of_round: Callable[[float, float, float], float]) -> float:
        """Without rounds that had too few requests for a p99; NaN if none is left."""
        found = [tuple(of[state][figure] for state in (ABSENT, AGAIN, MONITORED)) for of in rounds]
        return statistics.median([of_round(*three) for three in found if None not in three] or [math.nan])

    def ratio(figure: str) -> float:
        return median(figure, lambda absent, again, monitored: 2 * monitored / (absent + again))

    def absent(figure: str) -> float:
        return median(figure, lambda absent, again, monitored: absent)

    def noise(figure: str) -> float:
        return median(figure, lambda absent, again, monitored: again / absent)

    return Cell(
        kind, *load, absent("rate"), absent("cpu"), ratio("rate"), ratio("p99"), ratio("cpu"), noise("rate"), noise("cpu")
    )  # fmt: skip


def measure(args: argparse.Namespace) -> list[Cell]:
    """Every workload; prints each."""
    draw, cells = random.Random(args.seed), []
    print(HEAD)
    with Testbed() as bed:
        for kind, start in SERVERS.items():
            server = start(bed)
            for load in ((connections, size) for connections in CONNECTIONS for size in BYTES):
                cells.append(cell(bed, kind, server, load, draw, args))
                print(cells[-1], flush=True)
            server.process.stop()
    return cells


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each workload (default 5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each load (default 0.5)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (default 1)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="every workload, as JSON")
    args = parser.parse_args()
    if os.geteuid():
        print("error: BPF programs and namespaces need root\nhint: sudo make bench", file=sys.stderr)
        return 4
    if missing := [name for name in SERVERS if not on_path(name)]:
        print(
            f"error: {missing[0]} is not installed\nhint: apt install nginx-light apache2-bin",
            file=sys.stderr,
        )
        return 1
    private.mounts()
    try:
        cells = measure(args)
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name in ("rate", "p99", "cpu", "rate_noise", "cpu_noise"):
        low, middle, high = statistics.quantiles(
            [n for c in cells if not math.isnan(n := getattr(c, name))], n=4
        )
        print(f"{name:10} median of {len(cells)} workloads {middle:.3f} (quartiles {low:.3f}-{high:.3f})")
    goal = Goal(
        "requests/s, median of the workloads",
        statistics.median(c.rate for c in cells),
        THROUGHPUT_LEAST,
        at_most=False,
    )
    print(goal)
    if args.output:
        args.output.write_text(json.dumps([asdict(c) for c in cells], indent=1))
    return 0 if goal.met else 1


if __name__ == "__main__":
    sys.exit(main())
