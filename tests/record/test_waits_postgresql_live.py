# SPDX-License-Identifier: GPL-2.0-only
"""A row lock of PostgreSQL: who held it, and what the holder did meanwhile: nothing, its client had not committed yet.

By thread, and by request: the first cause of the slow request is the lock, with its holder.
"""

import json
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery.harness import warm
from machinery.testbed import ports
from recorder_run import Running, require_live

from conftest import skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.slow]

#: How long the row stays locked after somebody waits for it; less than deadlock_timeout, when the waiter checks for deadlocks.
HELD_NS = 300_000_000
#: Requests that wait for nobody: the slow one is compared with them.
USUAL = 100


class Session:
    """One psql with one backend, driven statement by statement."""

    def __init__(self, server: Path, port: int) -> None:
        command = ["psql", "-qAtX", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-d", "postgres"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.backend = int(self.ask("SELECT pg_backend_pid();"))

    def say(self, statement: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()

    def ask(self, statement: str) -> str:
        """The only value of the answer."""
        self.say(statement)
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate("\\q\n", timeout=60)


@pytest.fixture
def server(tmp_path_factory) -> Iterator[tuple[Path, int]]:
    """Its directory and its port on loopback."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not binaries or not shutil.which("psql"):
        skip_or_fail("postgresql", "PostgreSQL is not installed")
    require_live("bpf")
    user = pwd.getpwnam("postgres")
    # With a path that fits into a socket's address, and that this user may enter.
    directory = Path(subprocess.check_output(["mktemp", "-d", "/tmp/nsight-pg.XXXXXX"], text=True).strip())
    os.chown(directory, user.pw_uid, user.pw_gid)
    become = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]

    def run(program: str, *args: str) -> None:
        command = [*become, binaries[-1].parent / program, "-D", directory / "data", *args]
        log = directory / "output"
        with log.open("a") as output:
            done = subprocess.run(command, cwd="/", stdout=output, stderr=output, timeout=300)
        assert done.returncode == 0, log.read_text()

    try:
        run("initdb", "-A", "trust", "--no-sync")
        with ports.reserved(1) as (port,):
            options = f"-k {directory} -h 127.0.0.1 -p {port}"
            run("pg_ctl", "-w", "-l", str(directory / "log"), "-o", options, "start")
        try:
            yield directory, port
        finally:
            run("pg_ctl", "-w", "-m", "fast", "stop")
    finally:
        shutil.rmtree(directory)


def test_row_lock_names_its_holder_who_waited_for_a_client(server, tmp_path):
    """The holder's client waits for us, and we sleep. Only then does it commit, and the holder's backend wakes the waiter's."""
    holder, waiter, observer = (Session(*server) for _ in range(3))
    holder.say("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0);")
    assert holder.ask("SELECT n FROM t;") == "0"
    running = Running(tmp_path / "a.nsight", "--port", str(server[1]))
    running.wait_recording()
    assert holder.ask("BEGIN; UPDATE t SET n = 1 WHERE id = 1 RETURNING n;") == "1"
    for _ in range(USUAL):
        assert waiter.ask("SELECT 1;") == "1"
    waiter.say("UPDATE t SET n = n + 1 WHERE id = 1 RETURNING n;")
    asleep = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {waiter.backend};"
    while observer.ask(asleep) != "Lock":
        time.sleep(0.01)
    time.sleep(HELD_NS / 1e9)
    holder.say("COMMIT;")
    assert waiter.process.stdout is not None
    assert waiter.process.stdout.readline().strip() == "2"
    running.process.send_signal(signal.SIGINT)
    out, err = running.end()
    assert "lost: nothing" in out + err
    for session in (holder, waiter, observer):
        session.close()

    done = warm.run(["waits", tmp_path / "a.nsight", "--thread", waiter.backend, "--json", "-n", "0"])
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    first = f"for postgres[{holder.backend}]"
    chains = [chain for chain in made["chains"] if first in chain["links"][0] and len(chain["links"]) > 2]
    told = max(chains, key=lambda chain: chain["total_ns"])
    print(told["chain"], told["total_ns"])
    assert told["total_ns"] >= HELD_NS * 0.9
    # idle in transaction: its client had not sent COMMIT yet, since nobody had asked it to
    assert f"for psql[{holder.process.pid}]" in told["links"][1]
    assert told["links"][-1].startswith("slept in clock_nanosleep")
    first_cause_of_the_slow_request(tmp_path / "a.nsight", holder)


def first_cause_of_the_slow_request(capture: Path, holder: Session) -> None:
    done = warm.run([capture, "--latency", "request", "--slow", "200ms-", "--json"])
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["latency"], made["causes"][0]["n_messages"]) == ("request", 1)
    first = made["causes"][0]
    print(first["cause"], first["total_deviation_ns"], first["chain"])
    assert first["cause"] == "Lock wait (A)"
    assert first["total_deviation_ns"] >= HELD_NS * 0.9
    assert f"for postgres[{holder.backend}]" in first["chain"]
    assert f"for psql[{holder.process.pid}]" in first["chain"]
    assert first["chain"].endswith("slept in clock_nanosleep")
    assert made["coverage"]["median"] >= 0.9
