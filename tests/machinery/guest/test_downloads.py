# SPDX-License-Identifier: GPL-2.0-only
"""tools/downloads records and lists the bytes received while a command ran, and does not disturb the command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import kernels
import pytest

#: The system's: the program has to run before there is another.
PYTHON = "/usr/bin/python3"


class Copy:
    """The program in a tree of its own, with interfaces whose counters a test sets."""

    def __init__(self, directory: Path) -> None:
        self.net, self.program = directory / "net", directory / "tools" / "downloads"
        self.program.parent.mkdir()
        text = (kernels.TOP / "tools/downloads").read_text()
        assert text.count('Path("/sys/class/net")') == 1
        self.program.write_text(text.replace('Path("/sys/class/net")', f"Path({str(self.net)!r})"))
        self.table = directory / "build" / "downloads.tsv"
        self.counter("lo", 5_000_000)
        self.counter("eth0", 1_000)

    def counter(self, interface: str, n: int) -> Path:
        """The file with the bytes that ``interface`` has received, now ``n``."""
        file = self.net / interface / "statistics" / "rx_bytes"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{n}\n")
        return file

    def __call__(self, *argv: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PYTHON, str(self.program), *argv], capture_output=True, text=True, timeout=60, **options
        )  # type: ignore[call-overload]

    def receive(self, name: str, n: int, interface: str = "eth0", more: str = "") -> None:
        """A step that receives ``n`` bytes."""
        file = self.net / interface / "statistics" / "rx_bytes"
        add = (
            f'mkdir -p "$(dirname "$1")"; n=$(cat "$1" 2>/dev/null || echo 0); echo $((n + $2)) >"$1"; {more}'
        )
        done = self(name, "--", "sh", "-c", add, "sh", str(file), str(n))
        assert (done.returncode, done.stderr) == (0, "")

    def rows(self) -> list[list[str]]:
        """Name and bytes of each line."""
        return [line.split("\t")[:2] for line in self.table.read_text().splitlines()]


@pytest.fixture
def downloads(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_each_step_has_the_bytes_that_came_while_it_ran(downloads: Copy) -> None:
    downloads.receive("first", 300_000)
    downloads.receive("second\tstep", 2_000_000)
    assert downloads.rows() == [["first", "300000"], ["second step", "2000000"]]
    for line in downloads.table.read_text().splitlines():
        assert re.fullmatch(r"[^\t]+\t\d+\t\d+\.\d\t\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line)
    out = downloads("--list").stdout.splitlines()
    assert [line.split()[:2] for line in out] == [["300.0", "kB"], ["2.0", "MB"], ["2.3", "MB"]]
    assert "in total" in out[2]


def test_little_is_not_noted(downloads: Copy) -> None:
    downloads.receive("little", 64 << 10)
    assert not downloads.table.exists()
    downloads.receive("more", (64 << 10) + 1)
    assert downloads.rows() == [["more", "65537"]]


def test_loopback_and_interfaces_that_pass_on_do_not_count(downloads: Copy) -> None:
    downloads.counter("br0", 0)
    (downloads.net / "br0" / "lower_eth0").symlink_to("../eth0")
    downloads.receive("bridge", 1_000_000, "br0")
    downloads.receive("loopback", 1_000_000, "lo")
    assert not downloads.table.exists()


def test_interfaces_may_come_and_go_meanwhile(downloads: Copy) -> None:
    downloads.counter("veth0", 900_000)
    gone = f'rm -r "{downloads.net / "veth0"}"'
    downloads.receive("one comes, one goes", 100_000, "eth1", gone)
    assert downloads.rows() == [["one comes, one goes", "100000"]]
    again = f"echo 70000 >{downloads.counter('veth1', 900_000)}"
    downloads.receive("one is made anew", 100_000, "eth0", again)
    assert downloads.rows()[1:] == [["one is made anew", "170000"]]


def test_list_of_nothing_and_begin(downloads: Copy) -> None:
    assert downloads("--list").stdout == "nothing was downloaded\n"
    downloads.receive("step", 100_000)
    assert downloads("--begin").returncode == 0
    assert downloads("--begin").returncode == 0
    assert downloads("--list").stdout == "nothing was downloaded\n"


def test_output_input_and_exit_code_are_those_of_the_command(downloads: Copy) -> None:
    done = downloads("step", "--", "sh", "-c", "cat; echo err >&2; exit 7", input="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "in\n", "err\n")


def test_exit_codes_are_known_under_a_program_that_ignores_its_children(downloads: Copy) -> None:
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [
        PYTHON,
        "-c",
        ignore,
        PYTHON,
        str(downloads.program),
        "step",
        "--",
        "sh",
        "-c",
        "sleep 0.1; exit 7",
    ]
    assert subprocess.run(argv, timeout=60).returncode == 7


def test_a_failed_step_is_noted_too(downloads: Copy) -> None:
    file = downloads.net / "eth0/statistics/rx_bytes"
    done = downloads("failed", "--", "sh", "-c", f"echo 200000 >{file}; exit 3")
    assert (done.returncode, downloads.rows()) == (3, [["failed", "199000"]])


#: Ends with 9 when the signal comes, with 0 if it does not. A shell cannot do this: signals that nohup ignores stay ignored there.
#: It does not use print, because the signal may arrive inside print.
WAIT = """
import os, signal, sys, time
def end(*_):
    os.write(1, b"got\\n")
    os._exit(9)
signal.signal(int(sys.argv[1]), end)
os.write(1, b"ready\\n")
time.sleep(300)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command(downloads: Copy, number: signal.Signals) -> None:
    argv = [PYTHON, str(downloads.program), "step", "--", PYTHON, "-c", WAIT, str(int(number))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert (process.stdout.read(), process.wait(300)) == ("got\n", 9)


#: Prints how often SIGINT arrived within a second: each arrival writes a byte to the pipe.
COUNT = """
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: None)
pipe, wakeup = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(wakeup)
print("ready", flush=True)
time.sleep(1)
print(len(os.read(pipe, 100)))
"""


def test_a_signal_of_the_terminal_comes_once(downloads: Copy) -> None:
    # The kernel sends Ctrl-C to the whole process group, including the command.
    master, slave = os.openpty()
    run = f'exec {PYTHON} {downloads.program} step -- {PYTHON} -c "$COUNT"'
    argv = ["setsid", "--ctty", "--wait", "sh", "-c", run]
    env = {**os.environ, "COUNT": COUNT}
    with subprocess.Popen(argv, stdin=slave, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        os.write(master, b"\x03")
        assert (process.stdout.read(), process.wait(300)) == ("1\n", 0)
    os.close(master)
    os.close(slave)


def test_a_command_that_a_signal_ends_ends_the_program_so(downloads: Copy) -> None:
    assert downloads("step", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_an_unwritable_table_stops_nothing(downloads: Copy) -> None:
    downloads.table.parent.write_text("a file where the directory should be\n")
    file = downloads.net / "eth0/statistics/rx_bytes"
    done = downloads("step", "--", "sh", "-c", f"echo 200000 >{file}; echo made")
    assert (done.returncode, done.stdout) == (0, "made\n")
    assert "not noted" in done.stderr


def test_no_interfaces_at_all_stop_nothing(downloads: Copy) -> None:
    subprocess.run(["rm", "-r", str(downloads.net)], check=True)
    assert downloads("step", "--", "true").returncode == 0
    assert downloads("--list").stdout == "nothing was downloaded\n"


def test_since_counts_from_what_a_shell_program_kept(downloads: Copy, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text(
        "".join(f"{f}:{f.read_text()}" for f in sorted(downloads.net.glob("*/statistics/rx_bytes")))
    )
    os.utime(kept, (time.time() - 30,) * 2)
    downloads.counter("eth0", 501_000)
    assert downloads("--since", str(kept), "packages").returncode == 0
    assert downloads.rows() == [["packages", "500000"]]
    assert 30 <= float(downloads.table.read_text().split("\t")[2]) < 60
    # Without a stored count, the bytes received since boot belong to no command.
    for text in ("", "nonsense\n"):
        kept.write_text(text)
        assert downloads("--since", str(kept), "packages").returncode == 0
    assert len(downloads.rows()) == 1


@pytest.mark.parametrize(
    "argv", [[], ["name"], ["name", "--"], ["name", "true"], ["--since", "x"], ["--lst"]]
)
def test_wrong_usage_is_said(downloads: Copy, argv: list[str]) -> None:
    done = downloads(*argv)
    assert done.returncode == 2
    assert "error: " in done.stderr and "hint: " in done.stderr


def test_a_program_that_is_not_there_is_said(downloads: Copy) -> None:
    done = downloads("step", "--", "/nonexistent/program")
    assert done.returncode == 127
    assert "error: /nonexistent/program: " in done.stderr and "hint: " in done.stderr


PROGRAMS = {
    "id": "echo 0",
    "dpkg-query": 'echo "not-installed"',
    # Like apt-get, it downloads, and fails for one package.
    "apt-get": '[ "$1" = update ] || case $* in *absent*) echo cause; exit 100;; esac',
}


@pytest.mark.parametrize(("package", "code"), [("present", 0), ("absent", 4)])
def test_installing_packages_is_measured_whether_it_works_or_not(
    downloads: Copy, tmp_path: Path, package: str, code: int
) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    received = downloads.net / "eth0/statistics/rx_bytes"
    for name, text in PROGRAMS.items():
        receive = f"echo 777000 >{received}\n" if name == "apt-get" else ""
        (directory / name).write_text(f"#!/bin/sh\n{receive}{text}\n")
        (directory / name).chmod(0o755)
    program = downloads.program.with_name("install-packages")
    text = (kernels.TOP / "tools/install-packages").read_text()
    program.write_text(text.replace("/sys/class/net", str(downloads.net)))
    env = {"PATH": f"{directory}:/usr/bin:/bin", "PACKAGES": package}
    done = subprocess.run(["sh", str(program)], env=env, capture_output=True, text=True)
    assert done.returncode == code
    assert downloads.rows() == [["Debian packages", "776000"]]
    assert ("cause" in done.stderr) == bool(code)
