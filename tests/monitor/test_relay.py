# SPDX-License-Identifier: GPL-2.0-only
"""--listen: readers come and go, the counts continue; group names come from the process that may find them."""

from __future__ import annotations

import itertools
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import lines
import pytest
from nsight_monitor import exporter, names, relay, snapshots
from nsight_record.errors import OutputError

from conftest import skip_or_fail

HEADER, NAMES = lines.header("port"), json.dumps({"names": {"2": "web"}}) + "\n"
WINDOW = json.dumps({"window": {"name": "20261122T184906Z-1-1.nsight", "slow": []}}) + "\n"


HANGS_S = 120


@pytest.fixture(autouse=True)
def no_socket_waits_for_ever() -> Iterator[None]:
    socket.setdefaulttimeout(HANGS_S)
    yield
    socket.setdefaulttimeout(None)


def sums(n: int) -> str:
    return lines.snapshot(n, lines.histogram("ip-start", 2, n, b1=n), groups={"2": 80})


def connected(path: Path):
    found = relay.connected(path)
    assert found is not None
    return found


# The first is short wherever this directory is: a socket's name has at most 107 bytes.
@pytest.mark.parametrize("address", ["/proc/self/cwd/notify", "@nsight-{pid}"])
def test_systemd_is_told_once_that_readers_may_come(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = address.format(pid=os.getpid())
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        made = relay.Relay(tmp_path / "s")
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)  # its programs are not attached
        made.send(HEADER)
        made.send(sums(1))
        assert systemd.recv(100) == b"READY=1"
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
        made.close()


def test_no_line_comes_from_a_loader_that_has_none() -> None:
    assert list(relay.named([])) == []


def test_a_reader_that_comes_late_gets_header_windows_names_and_the_newest_sums(tmp_path: Path) -> None:
    made = relay.Relay(tmp_path / "s")
    for line in (HEADER, sums(1), WINDOW, NAMES, sums(2)):
        made.send(line)
    with connected(tmp_path / "s") as reader:
        assert [reader.readline() for _ in range(4)] == [HEADER, WINDOW, NAMES, sums(2)]
        made.send(sums(3))
        assert reader.readline() == sums(3)
        made.close()
        assert reader.read() == ""
    assert not (tmp_path / "s").exists()


def test_the_count_of_windows_does_not_fall_when_the_exporter_begins_anew(tmp_path: Path) -> None:
    """The exporter gets the last 64 of 100 windows. For Prometheus, a smaller count is a new count, and 64 more windows."""
    if exporter.prometheus_client is None:
        skip_or_fail("prometheus", "prometheus_client is not installed")
    made = relay.Relay(tmp_path / "s")
    for line in (HEADER, sums(1)):
        made.send(line)
    for n in range(1, 101):
        made.send(
            json.dumps({"window": {"name": f"20261122T184906Z-1-{n}.nsight", "slow": [], "n": n}}) + "\n"
        )
    with connected(tmp_path / "s") as reader:
        collector = exporter.Collector(snapshots.header(reader.readline()))
        _, states = snapshots.read(itertools.chain([HEADER], reader))
        threading.Thread(target=made.close, daemon=True).start()
        for state in states:
            collector.update(state)
    body, _ = collector.answer("text/plain")
    assert "nsight_flight_windows_total 100.0" in body.decode()


@pytest.mark.parametrize("n", [107, 108, 300])
def test_a_socket_may_have_a_longer_path_than_an_address_has(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("d" * (n - 50), "s" * 49)
    assert len(str(path)) == n
    path.parent.mkdir(parents=True)
    made = relay.Relay(path)
    made.send(HEADER)
    with connected(path) as reader:
        assert reader.readline() == HEADER
        made.close()
        assert reader.read() == ""
    assert not path.exists()


def test_a_reader_that_goes_takes_nothing_from_the_next_one(tmp_path: Path) -> None:
    made = relay.Relay(tmp_path / "s")
    made.send(HEADER)
    with connected(tmp_path / "s") as first:
        assert first.readline() == HEADER
    for n in range(1, 100):
        made.send(sums(n))
    with connected(tmp_path / "s") as second:
        header, states = snapshots.read(second)
        found = next(states)
        assert isinstance(found, snapshots.Snapshot)
        assert (header.group_by, found.histograms["ip-start", 2].count) == ("port", 99)
        made.close()


def test_a_reader_that_comes_at_the_end_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's thread begins when the relay is already closing."""

    class Late(threading.Thread):
        def start(self) -> None:
            entered.set()
            while not made._ended:
                time.sleep(0.01)
            time.sleep(0.2)
            super().start()

    entered, made = threading.Event(), relay.Relay(tmp_path / "s")
    made.send(HEADER)
    made.send(sums(1))
    monkeypatch.setattr(threading, "Thread", Late)
    with connected(tmp_path / "s") as reader:
        assert entered.wait(HANGS_S)
        made.close()
        assert reader.read() == HEADER + sums(1)


def test_a_slow_reader_misses_sums_and_no_others_wait_for_it(tmp_path: Path) -> None:
    made = relay.Relay(tmp_path / "s")
    made.send(HEADER)
    many = lines.snapshot(1, counts={f"count{i}": i for i in range(20_000)})  # more than a socket takes
    with connected(tmp_path / "s") as reader:
        assert reader.readline() == HEADER
        for _ in range(200):
            made.send(many)
        made.send(sums(5))
        closing = threading.Thread(target=made.close)
        closing.start()
        rest = reader.readlines()
        closing.join()
    assert rest[-1] == sums(5)
    assert len(rest) < 200


def test_a_reader_that_starts_slowly_is_served_when_it_reads(tmp_path: Path) -> None:
    """For 35 s it accepts nothing, and its socket is full: longer than 30 s, after which it was once disconnected."""
    made = relay.Relay(tmp_path / "s")
    made.send(HEADER)
    many = lines.snapshot(1, counts={f"count{i}": i for i in range(20_000)})  # more than a socket takes
    with connected(tmp_path / "s") as reader:
        made.send(many)
        time.sleep(35)
        made.send(sums(5))
        made.send(sums(6))
        closing = threading.Thread(target=made.close)
        closing.start()
        assert reader.readlines()[-1] == sums(6)
        closing.join()


def test_the_socket_is_its_owners_alone_and_replaces_one_that_was_left(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = relay.Relay(path)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    second = relay.Relay(path)
    second.send(HEADER)
    with connected(path) as reader:
        assert reader.readline() == HEADER
        second.close()
    first.close()


def test_a_path_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError) as error:
        relay.Relay(tmp_path / "file")
    assert error.value.hint and (tmp_path / "file").read_text() == "mine"


def test_names_stand_in_front_of_the_first_sums_that_have_them() -> None:
    found = list(relay.named([HEADER, sums(1), sums(2)]))
    assert found == [
        HEADER,
        json.dumps({"names": {"0": "(others)", "1": "(none)", "2": "80"}}) + "\n",
        sums(1),
        sums(2),
    ]
    ungrouped = [lines.header(), lines.snapshot(1)]
    assert list(relay.named(ungrouped)) == ungrouped


def test_a_given_name_is_taken_and_still_two_groups_never_have_one() -> None:
    found = names.Names("cgroup")
    given = snapshots.other(json.dumps({"names": {"0": "x", "2": "web", "3": "web", "4": "a\u001b"}}))
    assert isinstance(given, snapshots.GivenNames)
    found.give(given.names)
    sums = snapshots.snapshot(lines.snapshot(1, groups={"2": 1, "3": 2, "4": 3}))
    assert found.of(sums) == {0: "(others)", 1: "(none)", 2: "web", 3: "web #3", 4: "a?"}


def test_a_long_path_of_a_control_group_ends_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may create control groups may create such long paths; two of them still have two names."""
    paths = [tmp_path / ("d" * 150) / ("e" * 150 + last) for last in "ab"]
    for path in paths:
        path.mkdir(parents=True)
    monkeypatch.setattr(names, "cgroup_root", lambda: tmp_path)
    groups = {str(n): path.stat().st_ino for n, path in enumerate(paths, 2)}
    text = [lines.header("cgroup"), lines.snapshot(1, groups=groups)]
    _, found = snapshots.read(relay.named(text))
    given = next(found)
    assert isinstance(given, snapshots.GivenNames)
    assert given.names[2] == f"/{'d' * 150}/{'e' * 48}" and given.names[3] == f"{given.names[2]} #3"
    assert names.Names("comm").of(snapshots.snapshot(lines.snapshot(1, groups={"2": "a #4", "3": "a", "4": "a"}))) == {
        0: "(others)", 1: "(none)", 2: "a #4", 3: "a", 4: "a #4 #4",
    }  # fmt: skip


COPY = "import sys; [print(line, end='', file=open(sys.argv[1], 'a')) for line in sys.stdin]"


def test_a_child_that_is_killed_is_started_again_with_what_a_late_reader_gets(tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = relay.Child([sys.executable, "-c", COPY, str(out)], wait_s=0)
    child.send(HEADER)
    assert child._process
    child._process.kill()
    child._process.wait()
    for line in (sums(1), WINDOW, NAMES):
        child.send(line)
    assert child.lives()
    child.send(sums(2))
    assert child.end() == 0
    assert out.read_text().endswith(
        HEADER + sums(1) + '{"exporter_restarts": 1}\n' + WINDOW + NAMES + sums(2)
    )


def test_a_child_that_is_killed_soon_after_its_start_waits_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started at 0 s, killed. Waits until 1 s. Killed again: until 2 s later; then 4 s. It runs for 61 s and is killed: it
    is started at once, and waits 1 s the next time."""
    out, now = tmp_path / "out", [0.0]
    monkeypatch.setattr(relay.time, "monotonic", lambda: now[0])
    child = relay.Child([sys.executable, "-c", COPY, str(out)])
    child.send(HEADER)
    n = 0

    def kill() -> subprocess.Popen[bytes]:
        assert child._process
        child._process.kill()
        child._process.wait()
        return child._process

    def send() -> None:
        nonlocal n
        n += 1
        child.send(sums(n))

    for wait_s in (1, 2, 4):
        killed = kill()
        now[0] += wait_s - 0.1
        assert child.lives()
        send()
        assert child._process is killed
        now[0] += 0.1
        send()
        assert child._process is not killed
    now[0] += 61
    killed = kill()
    send()
    assert child._process is not killed
    killed = kill()
    now[0] += 1
    send()
    assert child._process is not killed
    assert child.end() == 0
    assert out.read_text().endswith(HEADER + sums(n) + '{"exporter_restarts": 5}\n')


def test_a_child_that_ends_by_itself_stays_away() -> None:
    child = relay.Child([sys.executable, "-c", "raise SystemExit(3)"], wait_s=0)
    child.send(HEADER)
    assert child._process
    child._process.wait()
    assert not child.lives()
    with pytest.raises(BrokenPipeError):
        child.send(sums(1))
    assert child.end() == 3


def test_the_end_of_a_killed_child_is_an_error(tmp_path: Path) -> None:
    child = relay.Child([sys.executable, "-c", COPY, str(tmp_path / "out")], wait_s=HANGS_S)
    child.send(HEADER)
    assert child._process
    child._process.kill()
    with pytest.raises(OutputError, match="signal 9"):
        child.end()
