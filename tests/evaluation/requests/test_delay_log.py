# SPDX-License-Identifier: GPL-2.0-only
"""The log of the servers with known faults: it has what was injected, and nothing of what a busy machine adds."""

from __future__ import annotations

import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from evaluation.requests import causes, delays, serving

MS = 1_000_000


def lines(log: Path) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A clock that only the test moves, and how long the thread has been ready without running."""
    at = {"now": 100 * MS, "ready": 0}
    monkeypatch.setattr(time, "monotonic_ns", lambda: at["now"])
    monkeypatch.setattr(delays, "waited_for_a_core_ns", lambda: at["ready"])
    return at


def test_wait_for_a_core_is_no_delay(clock: dict[str, int]) -> None:
    """The delay took 9 ms. The thread waited for a core for 6 ms of it, so 3 ms are its own."""
    own = delays.Work()
    clock["now"] += 9 * MS
    clock["ready"] += 6 * MS
    assert own.until_now() == [(100 * MS, 103 * MS)]


def test_sleep_that_ends_late_counts_as_long_as_it_was_asked_for(clock: dict[str, int]) -> None:
    own = delays.Work(10 * MS)
    clock["now"] += 25 * MS
    assert own.until_now() == [(100 * MS, 110 * MS)]


def test_only_the_parts_of_a_wait_in_which_the_fault_acted_count(
    clock: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sleeps of 10 ms, the first ends 5 ms late: [100, 110] and [115, 125]."""
    late = iter([15, 10])
    monkeypatch.setattr(time, "sleep", lambda _s: clock.update(now=clock["now"] + next(late) * MS))
    holds = delays.Acts()
    holds.act(0.010)
    holds.act(0.010)
    assert holds.within(105 * MS, 130 * MS) == [(105 * MS, 110 * MS), (115 * MS, 125 * MS)]
    assert holds.within(105 * MS, 130 * MS, at_once=2) == []


def test_lock_that_is_taken_without_the_fault_is_no_delay(clock: dict[str, int], tmp_path: Path) -> None:
    """A thread that loses its core while it has the lock makes others wait, too: nothing was injected."""
    server = serving.Mutex.__new__(serving.Mutex)
    server.holds = delays.Acts()

    class Taken:
        def __enter__(self) -> None:
            clock["now"] += 8 * MS

        def __exit__(self, *_: object) -> None:
            pass

    server.lock = Taken()  # type: ignore[assignment]
    log = delays.Log(str(tmp_path / "log"))
    log(4711, server.delays(1)[1])
    assert lines(tmp_path / "log") == []


def test_short_delays_are_not_logged(tmp_path: Path) -> None:
    log = delays.Log(str(tmp_path / "log"))
    log(1, [(0, 200_000), (300_000, 500_000)])
    log(2, [(0, 200_000), (300_000, 600_000)])
    assert lines(tmp_path / "log") == [(2, 0, 200_000), (2, 300_000, 600_000)]


def test_large_reply_is_delayed_until_its_last_byte_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader begins only when the reply does not fit: until then the reply cannot have left, whatever the machine does."""
    monkeypatch.setattr(delays, "waited_for_a_core_ns", lambda: 0)  # waits for a core shorten the delay
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        client.connect(server.getsockname())
        served, _ = server.accept()
        # The 40th reply is large.
        work = (served, serving.Large(), iter([serving.EVERY]), delays.Log(str(log)))
        thread = threading.Thread(target=serving.attend, args=work)
        thread.start()
        client.sendall(bytes(serving.SIZE))
        assert client.recv(1) == b"\0"
        while not delays.holds_back(served):
            pass
        began = time.monotonic_ns()
        time.sleep(0.001)  # longer than what counts as a delay
        left = serving.LARGE - 1
        while left:
            left -= len(client.recv(left))
        client.shutdown(socket.SHUT_WR)
        thread.join()
        served.close()
        port = client.getsockname()[1]
    ((of, start, end),) = lines(log)
    assert of == port
    assert start < began < end


def test_large_reply_is_not_delayed_while_its_thread_waits_for_a_core(
    clock: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 ms from the call to the driver, the thread waited 14 ms for a core: 6 ms are the link's."""

    class Connection:
        def setsockopt(self, *_: object) -> None:
            pass

        def sendall(self, _data: bytes) -> None:
            clock["now"] += 15 * MS
            clock["ready"] += 14 * MS

    departures = delays.Departures(Connection())  # type: ignore[arg-type]
    monkeypatch.setattr(departures, "_last_ns", lambda: 120 * MS)
    departures.send(b"reply")
    assert departures.delay() == [(114 * MS, 120 * MS)]


def test_core_that_is_lost_before_the_send_call_makes_no_delay(
    clock: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread waits for a core for 26 ms while it reads how long it has waited."""

    def waited() -> int:
        if not clock["ready"]:
            clock.update(now=126 * MS, ready=26 * MS)
        return clock["ready"]

    class Connection:
        def setsockopt(self, *_: object) -> None:
            pass

        def sendall(self, _data: bytes) -> None:
            pass

    monkeypatch.setattr(delays, "waited_for_a_core_ns", waited)
    departures = delays.Departures(Connection())  # type: ignore[arg-type]
    monkeypatch.setattr(departures, "_last_ns", lambda: 127 * MS)
    departures.send(b"reply")
    assert departures.delay() == [(126 * MS, 127 * MS)]


def test_departure_is_right_though_the_thread_lost_its_core_between_two_clocks(
    clock: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLOCK_REALTIME is 7 s ahead; after the first reading of it, the thread waits 26 ms."""
    lost = iter([26 * MS])

    def realtime() -> int:
        now = clock["now"] + 7000 * MS
        clock["now"] += next(lost, 0)
        return now

    monkeypatch.setattr(time, "time_ns", realtime)

    class Connection:
        def setsockopt(self, *_: object) -> None:
            pass

        def recvmsg(self, *_: int) -> tuple[bytes, list[tuple[int, int, bytes]]]:
            if stamps:
                return b"", [(socket.SOL_SOCKET, delays._SO_TIMESTAMPING, stamps.pop())]
            raise BlockingIOError

        def sendall(self, _data: bytes) -> None:
            pass

    stamps = [struct.pack("qq", 7, 101 * MS)]  # 101 ms of CLOCK_MONOTONIC
    departures = delays.Departures(Connection())  # type: ignore[arg-type]
    departures.send(b"reply")
    assert departures.delay() == [(100 * MS, 101 * MS)]


def test_request_counts_as_delayed_by_its_own_lines_only() -> None:
    class Row:
        first_ns, last_ns, latency_ns, rport = 0, 10 * MS, 10 * MS, 7

    assert causes._delayed(Row(), [(7, 0, 3 * MS), (7, 5 * MS, 7 * MS)])
    assert not causes._delayed(Row(), [(7, 0, 3 * MS), (8, 5 * MS, 9 * MS)])
