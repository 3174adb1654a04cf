# SPDX-License-Identifier: GPL-2.0-only
"""Known causes in the service and transmit phases of requests: does the diagnosis name each one first?

    causes.py [--seconds S] [--keep DIR] [CASE...]

Each case is a server with one fault (serving.py), or one that is disturbed from outside. The program that delays logs when it did.
A slow request counts if logged delays overlap most of its extra latency; ``top-1``: share of these requests whose largest cause is
the expected one; ``coverage``: of their deviation, median and least. Cases run as root, in a separate network namespace.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    _ROOT = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(_ROOT / part) for part in ("tools/nsight-report", "tools/nsight-demo", "tests")]

import nsight_report
import numpy as np
import pandas as pd
from machinery.testbed.limits import little_memory, slow_disk
from machinery.testbed.quota import quota
from nsight_report.errors import NoSlowMessages
from nsight_report.tables.data_frames import cause_names

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "tools/nsight-record/nsight-record"
SERVING = Path(__file__).with_name("serving.py")
DATA = ROOT / "build" / "data"
PORT, BACKEND = 7001, 7002
#: Time within which a recording of some seconds ends, unless it hangs.
END_S = 300
#: Requests count as slow from here on; each fault delays by more.
SLOW = "3ms-"

Rows = list[tuple[int, int, int]]


@dataclass(frozen=True)
class Case:
    """``serve``: the server's fault; ``cause``: the expected name of the cause; ``said``: expected in its chain or subject."""

    serve: str
    cause: tuple[str, ...]
    said: str = ""
    disturb: Callable[[int], object] | None = None
    proxy: bool = False
    options: tuple[str, ...] = ()
    load: str = "plain"


@contextmanager
def every(seconds: float, turn: Callable[[], None]) -> Iterator[None]:
    """Calls ``turn`` periodically, in parallel to the body of the context."""
    leave = threading.Event()

    def turns() -> None:
        while not leave.wait(seconds):
            turn()

    thread = threading.Thread(target=turns)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join()


@contextmanager
def stopped(pid: int) -> Iterator[Rows]:
    """Stopped for 10 ms, ten times a second."""
    rows: Rows = []

    def stop() -> None:
        start = time.monotonic_ns()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.01)
        os.kill(pid, signal.SIGCONT)
        rows.append((0, start, time.monotonic_ns()))

    with every(0.1, stop):
        yield rows


@contextmanager
def limited(pid: int) -> Iterator[Rows]:
    """A quota of a tenth of a core, and a helper in the same group that uses it up. The times of throttling are known to one period."""
    rows: Rows = []
    with quota(3_000, 30_000) as group:
        group.add(pid)
        last = group.throttled_ns()

        def look() -> None:
            nonlocal last
            now, at = group.throttled_ns(), time.monotonic_ns()
            if now > last:
                rows.append((0, at - (now - last), at))
            last = now

        with every(0.002, look):
            yield rows


@contextmanager
def slow_link(_pid: int) -> Iterator[Rows]:
    """Packets leave at 200 Mbit/s: large replies wait in the queue discipline."""
    shape = ["tbf", "rate", "200mbit", "burst", "70000", "latency", "2s"]
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", *shape], check=True)
    yield []


@contextmanager
def slow_writes(pid: int) -> Iterator[Rows]:
    """Few disk writes per second: a synchronous write takes long."""
    with slow_disk(pid, DATA.parent, 50):
        yield []


@contextmanager
def small(pid: int) -> Iterator[Rows]:
    """Less memory than the size of the file that is read: its pages are reclaimed, and read again."""
    with little_memory(pid, 24 << 20):
        yield []


CASES = {
    "mutex": Case("mutex", ("Lock wait (A)",), "slept in"),
    "sleep": Case("sleep", ("Application sleeps (A)",), "slept in"),
    "cold cache": Case("cold", ("Blocked on I/O or memory (A)",)),
    "blocked loop": Case("loop", ("Application sleeps (A)", "Head-of-line blocking (A)")),
    # While several replies are in flight, it is unknown whose reply it is: then the process is named.
    "slow backend": Case("http", ("Backend reply (A)", "Other processes (A)"), "slept in", proxy=True),
    "SIGSTOP": Case("quiet", ("Application stopped (A)",), disturb=stopped),
    "CPU quota": Case("quiet", ("CPU quota (A)",), disturb=limited),
    "tbf": Case("large", ("Queue discipline (T)",), disturb=slow_link, options=("--syscalls", "messages")),
    "Nagle": Case("pieces", ("Nagle with delayed ACK (T)",)),
    "DNS": Case("lookup", ("Backend reply (A)", "Other processes (A)"), "slept in"),
    "fsync": Case("synced", ("Blocked on I/O or memory (A)",), disturb=slow_writes),
    "memory limit": Case("thrash", ("Blocked on I/O or memory (A)",), disturb=small),
    "pool": Case("pool", ("Lock wait (A)",), "slept in"),
    "garbage": Case("garbage", ("Application processing (A)",)),
    "slow reader": Case("large", ("TCP window (T)",), load="slow", options=("--syscalls", "messages")),
    "none": Case("quiet", ()),
}
#: Of a cause whose words lack what the case asks for.
WITHOUT = "WITHOUT"
#: Causes that must not be named if nothing was injected.
INJECTED = {name for case in CASES.values() for name in case.cause}


@dataclass(frozen=True)
class Score:
    """Result of one case. ``told``: the expected cause, in the words used for most of its time."""

    case: str
    n: int
    top: float
    median: float
    least: float
    told: str


def record(case: Case, directory: Path, seconds: float) -> tuple[Path, Rows]:
    """The capture, and the delays (peer's port or 0 for all, begin, end)."""
    directory.mkdir(parents=True, exist_ok=True)
    log, capture = directory / "truth", directory / "run.nsight"
    with ExitStack() as stack:
        port = BACKEND if case.proxy else PORT
        argv = [sys.executable, str(SERVING), "serve", case.serve, str(port), str(log)]
        server = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "DATA": str(DATA)}
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        if case.proxy:
            proxy(directory, stack)
        rows = stack.enter_context(case.disturb(server.pid)) if case.disturb else []  # type: ignore[arg-type]
        load = [
            sys.executable,
            str(SERVING),
            "load",
            str(PORT),
            f"{seconds:g}",
            "http" if case.proxy else case.load,
        ]
        done = subprocess.run(
            [RECORD, "-q", "-f", "-o", capture, *ports(case), *case.options, "--", *load],
            capture_output=True,
            text=True,
            timeout=END_S,
        )
        assert done.returncode == 0, done.stderr
    if log.exists() and not rows:
        rows = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]  # type: ignore[misc]
    return capture, rows


def ports(case: Case) -> list[str]:
    """For a proxy, the backend's messages are recorded too, so no port can be selected."""
    return [] if case.proxy else ["--port", str(PORT)]


def proxy(directory: Path, stack: ExitStack) -> None:
    """nginx before the backend."""
    conf = directory / "nginx.conf"
    conf.write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log {directory}/error;\n"
        "events {}\nhttp { access_log off; keepalive_requests 100000000;\n"
        f"upstream b {{ server 127.0.0.1:{BACKEND}; keepalive 16; }}\n"
        f"server {{ listen 127.0.0.1:{PORT}; location / {{ proxy_pass http://b; proxy_http_version 1.1; "
        'proxy_set_header Connection ""; proxy_set_header X-Port $remote_port; } } }\n'
    )
    nginx = subprocess.Popen(["nginx", "-c", str(conf), "-p", str(directory)], stderr=subprocess.DEVNULL)
    stack.callback(nginx.wait)
    stack.callback(nginx.kill)
    while not (directory / "pid").exists():
        time.sleep(0.01)


def score(name: str, capture: Path, truth: Rows, port: int = PORT) -> Score:
    """Diagnose requests to ``port``, and compare the causes of each slow request that was truly delayed with the expected one."""
    case = CASES[name]
    c = nsight_report.open(capture, direction="request", slow=SLOW, port=port)
    try:
        rows = c.diagnosed_messages.rows(c.coverage["message_id"].to_numpy(np.int64))
    except NoSlowMessages:
        return Score(name, 0, 0.0, 0.0, 0.0, f"no request of {SLOW}")
    # Without a cause there is no log; a log without lines says that nothing was injected, not that everything was.
    delayed = rows[[_delayed(row, truth) for row in rows.itertuples()]] if case.cause else rows
    ids = delayed["message_id"].to_numpy(np.int64)
    anomalies = c.anomalies[c.anomalies["message_id"].isin(ids)].assign(cause=lambda of: cause_names(of))
    sums = anomalies.groupby(["message_id", "cause"])["deviation_ns"].sum().reset_index()
    largest = (
        sums.sort_values("deviation_ns").drop_duplicates("message_id", keep="last").set_index("message_id")
    )
    largest = largest["cause"].reindex(ids)
    right = largest.isin(case.cause) if case.cause else ~largest.isin(INJECTED)
    said = anomalies[anomalies["cause"].isin(case.cause)].assign(
        text=lambda of: of["path"].astype(str).where(of["path"].astype(str) != "", of["subject"].astype(str))
    )
    texts = said.groupby("text")["deviation_ns"].sum().sort_values().index.tolist()
    coverage = c.coverage.set_index("message_id").reindex(ids)["coverage"].to_numpy(float)
    told = texts[-1] if texts else ", ".join(f"{k} {v}" for k, v in largest.value_counts().head(2).items())
    if case.said and case.said not in told:
        told = f"{WITHOUT} {case.said!r}: {told}"
    none = np.zeros(1)
    return Score(
        name, len(ids), float(right.mean()) if len(ids) else 0.0, float(np.median(coverage if len(ids) else none)),
        float(np.min(coverage if len(ids) else none)), told,
    )  # fmt: skip


def _delayed(row: object, truth: Rows) -> bool:
    """Whether logged delays cover at least half of the request's latency."""
    r: pd.Series = row  # type: ignore[assignment]
    ns = sum(
        max(0, min(int(r.last_ns), end) - max(int(r.first_ns), start))
        for port, start, end in truth
        if port in (0, r.rport)
    )
    return 2 * ns >= r.latency_ns


def command_line(description: str | None, cases: Iterable[str]) -> argparse.Namespace:
    """Options of a program that records cases. Unless it is in a network namespace of its own, it is run again in one, and this exits."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(cases))
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--keep", type=Path, help="directory for captures")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        inner = 'ip link set lo up; mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing; exec "$@"'
        again = [sys.executable, sys.argv[0], "--inside", *sys.argv[1:]]
        raise SystemExit(subprocess.run(["unshare", "-n", "-m", "sh", "-c", inner, "sh", *again]).returncode)
    return args


def main() -> int:
    """Print a line for each case; fail if one is missed."""
    args = command_line(__doc__, CASES)
    bad = False
    print(
        f"{'case':13} {'n':>4} {'top-1':>6} {'coverage: median':>17} {'least':>6}  largest, as told",
        flush=True,
    )
    for name in args.cases or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            capture, truth = record(
                CASES[name], (args.keep or Path(scratch)) / name.replace(" ", "-"), args.seconds
            )
            s = score(name, capture, truth)
        print(f"{s.case:13} {s.n:4} {s.top:6.1%} {s.median:17.1%} {s.least:6.1%}  {s.told[:150]}", flush=True)
        # Having nothing to judge is a success only for the control; the right cause with a wrong reason is no success.
        nothing_slow = not s.n and not CASES[name].cause
        bad |= not nothing_slow and (s.top < 0.95 or s.told.startswith(WITHOUT))
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], capture_output=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
