# SPDX-License-Identifier: GPL-2.0-only
"""The load client: later tests compare messages with its log, so the log must be right."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pandas as pd
import pytest
from nsight_demo.bed import LOAD
from nsight_demo.logs import read_load
from nsight_demo.processes import HANGS_S

from demo.echo_server import tcp_server, udp_server

pytestmark = [pytest.mark.usefixtures("programs"), pytest.mark.live]


def load(port: int, protocol: str, log: Path, *options: str) -> pd.DataFrame:
    argv = [str(LOAD), "-s", "127.0.0.1", "-p", str(port), "-P", protocol, "-l", str(log), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    return read_load(log)


def bytewise(data: bytes) -> list[bytes]:
    return [data[i : i + 7] for i in range(0, len(data), 7)]


def test_answers_in_pieces_of_seven_bytes_are_put_together(tmp_path: Path) -> None:
    with tcp_server(bytewise) as port:
        log = load(port, "echo", tmp_path / "log", "-c", "3", "-n", "60", "--value-size", "50")
    assert len(log) == 60
    assert (log.recv_ns > log.send_ns).all()
    assert (log.response_bytes == 50).all()


def test_byte_ranges_of_a_connection_are_its_stream_without_holes(tmp_path: Path) -> None:
    received: dict[int, bytes] = {}
    lock = threading.Lock()

    def record(data: bytes) -> list[bytes]:
        with lock:
            who = threading.get_ident()
            received[who] = received.get(who, b"") + data
        return [data]

    with tcp_server(record) as port:
        options = ("-c", "2", "-n", "40", "--burst", "20", "--burst-every", "1", "--burst-value-size", "33")
        log = load(port, "echo", tmp_path / "log", *options, "--value-size", "20")
    streams = sorted(received.values())
    assert len(streams) == log.conn.nunique()
    expected = []
    for _, rows in log.groupby("conn"):
        assert rows.byte_start.tolist() == [0, *rows.nbytes.cumsum().tolist()[:-1]]
        # An echo request begins with its number, 8 bytes little-endian.
        numbers = zip(rows.number.tolist(), rows.nbytes.tolist(), strict=True)
        expected.append(b"".join(n.to_bytes(8, "little") + b"e" * (size - 8) for n, size in numbers))
    assert streams == sorted(expected)


# A burst per ms while 2000 requests are answered one after the other: at least some, on a machine of any speed.
BURSTS = ("-n", "2000", "--burst", "20", "--burst-every", "1")


def test_a_burst_is_one_write_on_one_connection(tmp_path: Path) -> None:
    with tcp_server(lambda data: [data]) as port:
        log = load(port, "echo", tmp_path / "log", *BURSTS)
    bursts = log[log.kind == "burst"]
    assert bursts.conn.nunique() == 1
    per_burst = bursts.groupby("intended_ns")
    assert (per_burst.size() == 20).all()
    assert (per_burst.send_ns.nunique() == 1).all()
    assert len(per_burst) >= 3


def test_spread_burst_uses_every_burst_connection_once(tmp_path: Path) -> None:
    with tcp_server(lambda data: [data]) as port:
        log = load(port, "echo", tmp_path / "log", *BURSTS, "--burst-connections", "20")
    bursts = log[log.kind == "burst"]
    assert (bursts.groupby("intended_ns").conn.nunique() == 20).all()
    assert len(bursts) and not set(bursts.conn) & set(log[log.kind == "echo"].conn)


# Long enough even if the server waits for a core.
LOST_MS = "3000"


def test_lost_datagrams_are_logged_without_answer(tmp_path: Path) -> None:
    with udp_server(lambda n: n % 10 == 3) as port:
        log = load(port, "echo-udp", tmp_path / "log", "-n", "20", "--udp-timeout", LOST_MS)
    lost = log[log.recv_ns == 0]
    assert len(log) == 20
    assert lost.byte_start.tolist() == [3, 13]  # one connection: datagram number = arrival number


def test_late_answers_are_not_taken_for_those_of_later_requests(tmp_path: Path) -> None:
    with udp_server(lambda n: n == 3, late=True) as port:
        log = load(port, "echo-udp", tmp_path / "log", "-n", "6", "--udp-timeout", LOST_MS)
    assert (log.recv_ns == 0).tolist() == [False, False, False, True, False, False]


def test_send_time_is_that_of_the_call_with_the_first_byte(tmp_path: Path) -> None:
    """Eight requests, together twice a send buffer's size: while nobody reads, the later ones wait for later calls."""
    send_buffer = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])
    with tcp_server(lambda data: [data], unread_s=0.5) as port:
        options = ("--burst", "8", "--burst-every", "1", "--rate", "1", "--fixed", "-n", "2")
        size = ("--burst-value-size", str(send_buffer // 4))
        log = load(port, "echo", tmp_path / "log", *options, *size)
    sent = log[log.kind == "burst"].groupby("intended_ns").send_ns
    assert sent.apply(lambda t: t.is_monotonic_increasing).all()
    # The first burst met an empty socket; a later one may be sent as a whole after data that was still queued.
    assert sent.max().iloc[0] > sent.min().iloc[0]
    assert (log.recv_ns > log.send_ns).all()


def test_open_loop_rate_is_kept(tmp_path: Path) -> None:
    with tcp_server(lambda data: [data]) as port:
        log = load(port, "echo", tmp_path / "log", "-c", "4", "--rate", "1000", "--fixed", "-n", "500")
    assert len(log) == 500
    assert (log.intended_ns.diff().dropna() == 1_000_000).all()
    assert (log.send_ns >= log.intended_ns).all()


def test_warm_up_is_logged_but_not_counted(tmp_path: Path) -> None:
    with tcp_server(lambda data: [data]) as port:
        log = load(port, "echo", tmp_path / "log", "--rate", "1000", "-w", "0.2", "-n", "400")
    before, counted = log[~log.counted], log[log.counted]
    assert len(before) and len(counted)
    # The first request is sent at once. A late one counts if the warm-up is over when it is sent.
    start = log.intended_ns.min()
    assert before.intended_ns.max() < start + 200_000_000 <= counted.send_ns.min()
    assert before.send_ns.max() < counted.send_ns.min()


def test_wrong_answer_is_an_error_not_a_latency(tmp_path: Path) -> None:
    with tcp_server(lambda data: [b"\xff" * len(data)]) as port:
        argv = [str(LOAD), "-s", "127.0.0.1", "-p", str(port), "-P", "echo", "-n", "5"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 1
    assert "unexpected answer" in done.stderr


@pytest.mark.parametrize("protocol", ["memcached", "memcached-binary", "redis", "http"])
def test_garbage_is_refused_by_every_protocol(protocol: str) -> None:
    with tcp_server(lambda data: [b"garbage of more than twenty-four bytes\r\n\r\n"]) as port:
        argv = [str(LOAD), "-s", "127.0.0.1", "-p", str(port), "-P", protocol, "-n", "5"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 1
    assert "unexpected answer" in done.stderr


def test_absent_server_is_one_error_with_a_hint() -> None:
    with socket.socket() as nobody:  # has the port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        argv = [str(LOAD), "-s", "127.0.0.1", "-p", str(port), "-P", "redis"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: 127.0.0.1 port {port}: Connection refused",
        "hint: is the server running, and in this network namespace?",
    ]


def test_unfinished_log_is_refused(tmp_path: Path) -> None:
    from nsight_demo.processes import BedError

    path = tmp_path / "cut"
    path.write_text("#nsight-load 1 clock=monotonic\nnumber\tconn\n0\t0\n")
    with pytest.raises(BedError, match="not a complete"):
        read_load(path)
