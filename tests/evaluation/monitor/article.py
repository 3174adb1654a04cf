#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The three runs of the article on netstacklat, in namespaces: overload, more workers, no more 10,000 nftables rules on input.

    .venv/bin/python tests/evaluation/monitor/article.py [RUN...] [--seconds N]        make monitor-article

RUN: overload, workers, no-rules (default: all). nginx sends a page of 10 kB that its worker needs some time to make. The capacity of one
worker behind the rules is measured first, and the load is 1.3 times this capacity: overload with one worker, workers with two, no-rules
with two and without the rules. Prints nsight-monitor's stages for each run, and the client's latencies. Exit codes: 0 each run shows in
the stage that it belongs to, 1 one does not, or a program failed, 2 usage, 4 not root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "tools/nsight-monitor"), str(ROOT / "tools/nsight-demo")]

from machinery.harness import private  # noqa: E402
from machinery.testbed.bed import Server, Testbed  # noqa: E402
from nsight_demo.logs import read_load  # noqa: E402
from nsight_demo.namespaces import SERVER4  # noqa: E402
from nsight_demo.processes import BedError, run, wait_until  # noqa: E402
from nsight_demo.servers import KINDS, USER  # noqa: E402
from nsight_monitor import snapshots, terminal  # noqa: E402
from nsight_monitor.histogram import Histogram  # noqa: E402
from nsight_monitor.views import Row  # noqa: E402

PROGRAM = ROOT / "tools/nsight-monitor/histograms/nsight-histograms"
N_RULES, CONNECTIONS, OFFERED = 10_000, 100, 1.3
#: The stages that the article shows.
STAGES = ("ip-start", "tcp-start", "tcp-socket-enqueued", "tcp-socket-read")
#: The worker searches in vain for a y after these, in 2**n ways: this takes time for each page, like a generated page.
QUERY = "x" * 13
CONFIGURATION = """\
daemon off;
worker_processes {workers};
worker_cpu_affinity {cores};
pid {directory}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen {address}:{port} reuseport;
        root {directory};
        if ($args ~ "^(x+x+)+y") {{ return 404; }}
    }}
}}
"""


@dataclass(frozen=True)
class Run:
    """The setup of a run."""

    name: str
    workers: int
    rules: bool
    article: str  # what it says of its run: a server of many cores, 15,000 requests/s


RUNS = (
    Run("overload", 1, True, "9,000 requests/s; read 110 ms (mean), enqueued 96 us; client p50 109 ms"),
    Run("workers", 2, True, "15,000 requests/s; read 1.02 ms, enqueued 109 us; client p50 0.95 ms"),
    Run("no-rules", 2, False, "15,000 requests/s; read 299 us, enqueued 4.18 us"),
)


@dataclass(frozen=True)
class Outcome:
    """``latency_us``: latencies at the client, sorted; ``stages`` by name."""

    rate: float
    latency_us: list[float]
    stages: dict[str, Histogram]

    def mean_us(self, stage: str) -> float:
        """Of a stage."""
        return self.stages[stage].mean_ns / 1000


def nginx(bed: Testbed, workers: int, name: str) -> Server:
    """In the server's namespace, with so many workers, the first on core 1."""
    port, directory = bed.reserve_port(), bed.directory / f"nginx-{name}"
    directory.mkdir()
    cores = " ".join(["10", "01"][:workers])
    (directory / "nginx.conf").write_text(
        CONFIGURATION.format(workers=workers, cores=cores, directory=directory, port=port, address=SERVER4)
    )
    (directory / "index.html").write_text("x" * 10_000)
    for path in (directory, *directory.iterdir()):
        os.chown(path, 65534, 65534)
        path.chmod(0o755)
    argv = ["nginx", "-e", "stderr", "-p", str(directory), "-c", str(directory / "nginx.conf")]
    process = bed.start("nginx", argv, bed.link.server, None, USER, "TERM")

    def listening() -> bool:
        process.check_alive()
        found = run(["nsenter", f"--net=/run/netns/{bed.link.server}", "--", "ss", "-Hltn"])
        return f"{SERVER4}:{port} " in found and len(process.children()) == workers

    wait_until(listening, "nginx listening")
    return Server(KINDS["nginx"], port, process)


def set_rules(bed: Testbed, there: bool) -> None:
    """10,000 forgotten rules on input that match nothing."""
    rule = "ip saddr 203.0.113.7 tcp dport 9 drop"
    text = "flush ruleset\n"
    if there:
        rules = "\n".join([rule] * N_RULES)
        text += f"table inet left {{ chain input {{ type filter hook input priority 0;\n{rules}\n}}\n}}\n"
    run(["nsenter", f"--net=/run/netns/{bed.link.server}", "--", "nft", "-f", "-"], stdin=text)


def load(bed: Testbed, server: Server, seconds: float, rate: float) -> tuple[float, list[float]]:
    """Requests/s answered, and their latencies in us; ``rate`` 0: as fast as it can."""
    log = bed.directory / "load.tsv"
    options = ["--path", f"/index.html?{QUERY}", "-c", str(CONNECTIONS), "-d", str(seconds), "-w", "0.5"]
    options += ["-r", str(round(rate))] if rate else []
    client = bed.start_load(server, options, log)
    if client.wait(seconds * 10 + 60):
        raise BedError(f"nsight-load failed: {client.output()}")
    found = read_load(log)
    found = found[found.counted & (found.recv_ns > 0)]
    took = (found.recv_ns.max() - found.send_ns.min()) / 1e9
    return len(found) / took, sorted(((found.recv_ns - found.send_ns) / 1000).tolist())


def watched(bed: Testbed, of: Run, seconds: float, rate: float) -> Outcome:
    """One run with nsight-monitor's programs running."""
    set_rules(bed, of.rules)
    server = nginx(bed, of.workers, of.name)
    inode = Path("/run/netns", bed.link.server).stat().st_ino
    argv = [str(PROGRAM), "--interval-ms", "3600000", "--netns", str(inode), "--port", str(server.port)]
    monitor = bed.start("monitor", argv)
    assert monitor.log
    log = monitor.log

    def started() -> bool:
        monitor.check_alive()
        return "\n" in log.read_text()

    wait_until(started, "nsight-monitor's start")
    answered, latency = load(bed, server, seconds, rate)
    monitor.signal(signal.SIGTERM)
    monitor.wait(60)
    server.process.stop()
    last = snapshots.snapshot(log.read_text().splitlines()[-1])
    return Outcome(answered, latency, {s: last.histograms[s, 0] for s in STAGES})


def shown(of: Run, outcome: Outcome) -> Iterator[str]:
    """Results of a run, and the article's figures."""
    latency = outcome.latency_us
    p50, p99 = (latency[int(len(latency) * p)] / 1000 for p in (0.5, 0.99))
    yield f"\n{of.name}: {of.workers} worker{'s' * (of.workers > 1)}, {N_RULES if of.rules else 0} rules on input"
    yield f"client: {outcome.rate:,.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms"
    yield from terminal.table([Row(stage, "", outcome.stages[stage]) for stage in STAGES])
    yield f"article: {of.article}"


def seen(found: dict[str, Outcome]) -> Iterator[tuple[str, float, float]]:
    """Claims about the completed runs: name, ratio, and its goal."""
    read, enqueued = "tcp-socket-read", "tcp-socket-enqueued"
    if {"overload", "workers"} <= found.keys():
        ratio = found["overload"].mean_us(read) / found["workers"].mean_us(read)
        yield "more workers: mean of tcp-socket-read falls", ratio, 2.0
    if {"workers", "no-rules"} <= found.keys():
        ratio = found["workers"].mean_us(enqueued) / found["no-rules"].mean_us(enqueued)
        yield "no rules: mean of tcp-socket-enqueued falls", ratio, 2.0
        before, after = (
            found[name].mean_us("tcp-start") - found[name].mean_us("ip-start")
            for name in ("workers", "no-rules")
        )
        yield "no rules: what lies between ip-start and tcp-start falls", before / after, 2.0


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="*", metavar="RUN", help="overload, workers, no-rules (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of load in each run (default: 5)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="every histogram, as JSON")
    args = parser.parse_args()
    names = args.run or [r.name for r in RUNS]
    if unknown := set(names) - {r.name for r in RUNS}:
        parser.error(f"there is no run {', '.join(sorted(unknown))}")
    if os.geteuid():
        print(
            "error: BPF programs and namespaces need root\nhint: sudo make monitor-article", file=sys.stderr
        )
        return 4
    private.mounts()
    found: dict[str, Outcome] = {}
    try:
        with Testbed() as bed:
            set_rules(bed, True)
            server = nginx(bed, 1, "capacity")
            capacity, _ = load(bed, server, min(args.seconds, 3.0), 0)
            server.process.stop()
            print(
                f"one worker behind {N_RULES:,} rules: {capacity:,.0f} requests/s; offered: {OFFERED:g} times that"
            )
            for of in RUNS:
                if of.name in names:
                    found[of.name] = watched(bed, of, args.seconds, OFFERED * capacity)
                    print(*shown(of, found[of.name]), sep="\n", flush=True)
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    claims = list(seen(found))
    print()
    for claim, ratio, least in claims:
        print(f"{'met   ' if ratio >= least else 'MISSED'} {claim}: {ratio:.1f} times (at least {least:g})")
    if args.output:
        rows = {name: {"rate": o.rate, "stages": {s: [list(h.n), h.sum_ns] for s, h in o.stages.items()}}
                for name, o in found.items()}  # fmt: skip
        args.output.write_text(json.dumps(rows))
    return 0 if all(ratio >= least for _, ratio, least in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
