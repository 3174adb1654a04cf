# SPDX-License-Identifier: GPL-2.0-only
"""Requests over TLS: the reads of one record are one part of a request, and what is not known to be a record is several."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nsight_report
import pytest
from evaluation.requests.client import END_S, RECORD
from machinery.made_up.tables import Row
from machinery.testbed import ports
from machinery.testbed.bed import on_path
from made_messages import join, received, sent
from nsight_record import clock, collect

from conftest import skip_or_fail

Reads = list[tuple[int, int]]
#: In the order of a server's reads.
HELLO, FINISHED, REQUEST = [(5, 0), (220, 0)], [(5, 0), (1, 0), (5, 0), (69, 0)], [(5, 0), (32, 0)]


def turns(*every: Reads) -> list[Row]:
    """Each turn is read and then answered. A read: its bytes, and by how much later than the turn's first bytes it arrived."""
    rows, at = [], 0
    for reads in every:
        for i, (nbytes, late) in enumerate(reads):
            rows.append(received(0, at + late, at + 10 + late, at + 50 + 20 * i, nbytes=nbytes))
        rows.append(sent(0, at + 500, at + 550))
        at += 1000
    return rows


def certain(tmp_path: Path, *every: Reads) -> list[bool]:
    made, _ = join(turns(*every), tmp_path)
    assert [r["n_messages"] for r in made] == [len(reads) for reads in every]
    return [r["certain"] for r in made]


def test_a_header_and_its_record_are_one_read(tmp_path: Path) -> None:
    assert certain(tmp_path, HELLO, FINISHED, *[REQUEST] * 20) == [True] * 22
    assert join(turns(HELLO, FINISHED, *[REQUEST] * 20), tmp_path)[1] == {}
    # From the middle on.
    assert certain(tmp_path, *[REQUEST] * 3) == [True] * 3


def test_a_record_may_take_several_reads(tmp_path: Path) -> None:
    large = [(5, 0), (1443, 0), (1448, 300), (13_510, 400)]
    assert certain(tmp_path, *[REQUEST] * 5, large, REQUEST) == [True] * 7


def test_two_records_may_be_two_requests(tmp_path: Path) -> None:
    assert certain(tmp_path, *[REQUEST] * 5, REQUEST * 2, REQUEST) == [True] * 5 + [False] * 2


def test_records_of_a_handshake_leave_no_request_unanswered(tmp_path: Path) -> None:
    """TLS 1.2: keys, ChangeCipherSpec and Finished are answered at once."""
    keys = [(5, 0), (37, 0), *FINISHED]
    assert certain(tmp_path, HELLO, keys, *[REQUEST] * 5) == [True, False, *[True] * 5]


OTHERS: dict[str, Callable[[int], Reads]] = {
    "the rest came after the first read": lambda i: [(5, 0), (32, 60 + i)],
    "requests of five bytes": lambda i: [(5, 0), (5, 0)],
    "a header of another size": lambda i: [(4, 0), (32, 0)],
    "too little for encrypted data": lambda i: [(5, 0), (12, 0)],
    "too much for a record": lambda i: [(5, 0), (12_000, 0), (12_000, 0)],
    "only sometimes": lambda i: REQUEST if i % 4 else [(7, 0), (32, 0)],
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_known_to_be_a_record_is_several_reads(name: str, tmp_path: Path) -> None:
    assert not any(certain(tmp_path, *[OTHERS[name](i) for i in range(12)]))


def test_a_lost_read_leaves_the_other_requests_certain(tmp_path: Path) -> None:
    """Without its first read a request is one read; without the second, its header stands for it."""
    lost: list[Reads] = [[(32, 0)], [(5, 0)]]
    many = [REQUEST] * 12
    assert certain(tmp_path, *many, lost[0], *many, lost[1], *many) == [True] * 38


CLIENT = """
import socket, ssl, sys
port, n, version = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as s:
    for i in range(n):
        line, got = b"request %06d" % i, b""
        s.sendall(line + b"\\n")
        while not got.endswith(b"\\n"):
            got += s.recv(4096)
        assert got == line[::-1] + b"\\n"
"""


@pytest.mark.live
@pytest.mark.parametrize(("version", "not_certain"), [("TLSv1_2", 1), ("TLSv1_3", 0)])
def test_requests_that_openssl_answers_are_certain(version: str, not_certain: int, tmp_path: Path) -> None:
    """One request at a time; TLS 1.2's keys and Finished are two records before one answer."""
    if os.geteuid():
        skip_or_fail("root", "recording needs root")
    if not collect.find() or not clock.find():
        skip_or_fail("bpf", "nsight-collect or nsight-clock is not built")
    if not on_path("openssl"):
        skip_or_fail("testbed", "openssl is not installed")
    n, key = 200, ["-key", tmp_path / "key", "-cert", tmp_path / "cert"]
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key", "-out", tmp_path / "cert"]
    subprocess.run(["openssl", "req", "-x509", *made, "-subj", "/CN=a"], check=True, capture_output=True)
    with ports.reserved() as (port,):
        server = subprocess.Popen(
            ["openssl", "s_server", "-rev", "-accept", f"127.0.0.1:{port}", *key],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            while server.stdout.readline() != "ACCEPT\n":
                assert server.poll() is None
            begin = time.monotonic_ns()
            client = [sys.executable, "-c", CLIENT, str(port), str(n), version]
            done = subprocess.run(
                [RECORD, "-q", "-o", tmp_path / "tls.nsight", "--port", str(port), "--", *client],
                capture_output=True, text=True, timeout=END_S,
            )  # fmt: skip
        finally:
            server.terminate()
            server.wait(END_S)
    assert done.returncode == 0, done.stderr
    rows = nsight_report.open(tmp_path / "tls.nsight").requests
    # ClientHello, and the end of the handshake, have their answers, too.
    assert len(rows) == n + 2 and (rows["role"] == "server").all() and (rows["first_ns"] > begin).all()
    assert (~rows["certain"]).sum() == not_certain
    assert rows["certain"].iloc[2:].all() and (rows["n_messages"].iloc[2:] == 2).all()
