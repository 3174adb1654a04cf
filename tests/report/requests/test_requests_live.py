# SPDX-License-Identifier: GPL-2.0-only
"""Real servers with the load client: every request of its log is in the table, and nothing else is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import nsight_report
import pandas as pd
import pytest
from evaluation.requests.client import END_S, RECORD, joined, record, told
from machinery.load import http2
from machinery.testbed import ports
from machinery.testbed.bed import on_path
from nsight_record import clock, collect
from nsight_report.cli import main
from nsight_report.export import page_data, perfetto
from nsight_report.plots.figures import Sheet
from nsight_report.summary import summarise
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as published

from conftest import skip_or_fail

pytestmark = pytest.mark.live


def require_recorder() -> None:
    if os.geteuid():
        skip_or_fail("root", "recording needs root")
    if not collect.find():
        skip_or_fail("bpf", "nsight-collect is not built")
    if not clock.find():
        skip_or_fail("clock", "nsight-clock is not built")


def require_testbed(server: str) -> None:
    require_recorder()
    for name in (
        "ip",
        "nsenter",
        "setpriv",
        "taskset",
        "ss",
        "memcached" if server == "memcached" else "redis-server",
    ):
        if not on_path(name):
            skip_or_fail("testbed", f"{name} is not installed")


@pytest.mark.parametrize(
    ("server", "options", "framing"),
    [
        ("memcached", "-n 1500 -c 5", "none"),
        ("redis", "-n 500 -c 3", "none"),
        ("memcached", "-n 300 -P memcached-udp --keys 10 --udp-timeout 60000", "none"),
        # Up to eight in flight, which only the protocol can tell apart.
        ("memcached", "-n 1000 -c 2 --pipeline 8 -r 40000 --set", "memcached"),
    ],
)
def test_every_request_of_the_client_is_joined_to_its_reply(
    server: str, options: str, framing: str, tmp_path: Path
) -> None:
    require_testbed(server)
    capture, log, port = record(server, options.split(), tmp_path, payload=framing != "none")
    c = nsight_report.open(capture, framing=framing)
    rows = joined(c, log, port)
    assert not rows["request_id"].isna().any(), told(rows)
    assert rows["request_id"].is_unique
    every = c.stored_requests.columns(
        ["role", "lport", "latency_ns", "receive_dur_ns", "queue_dur_ns", "service_dur_ns", "transmit_dur_ns"]
    )
    assert len(every) == len(rows)  # the client's own side is not recorded
    assert (every["role"] == "server").all()
    assert (every["latency_ns"] == every.filter(like="dur_ns").sum(axis=1)).all()
    # The client sends before the server receives, and has its reply after the driver had it; all timestamps are of one clock.
    assert (rows["there_ns"] >= 0).all() and (rows["back_ns"] >= 0).all()
    if "udp" not in options:  # datagrams have an additional header
        assert (rows["received_bytes"] == rows["reply_bytes"]).all()
    # Sent messages of the same capture, whose send calls were not recorded.
    sent = nsight_report.open(capture, direction="tx", framing=framing)
    assert len(sent.coverage) > 0
    assert sent.summary()["messages"]["n"] >= len(rows)


def test_requests_that_a_server_sends_lie_in_the_one_it_answers(tmp_path: Path) -> None:
    require_recorder()
    n = 50
    with ports.reserved(2) as (port, backend):
        argv = [sys.executable, str(Path(__file__).with_name("proxy.py")), str(port), str(backend), str(n)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin and server.stdout
            pid = server.stdout.readline().strip()
            # It starts when everything records; the command that starts it waits for its end.
            go = f"echo > /proc/{server.pid}/fd/0; while kill -0 {pid} 2>/dev/null; do sleep 0.1; done"
            done = subprocess.run(
                [RECORD, "-q", "-o", tmp_path / "tree.nsight", "--pid", pid, "--", "sh", "-c", go],
                capture_output=True, text=True, timeout=END_S,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            server.stdin.close()
            assert server.wait(END_S) == 0
    made = nsight_report.open(tmp_path / "tree.nsight").requests
    top, sent = (made[made["role"] == role] for role in ("server", "client"))
    assert (len(top), len(sent)) == (n, 2 * n)
    assert (top["lport"] == port).all() and (sent["rport"] == backend).all()
    # Two each, inside it, and together not longer than its service.
    inside = sent.groupby("parent_request_id")["latency_ns"].agg(["size", "sum"]).reindex(top["request_id"])
    assert (inside["size"] == 2).all()
    assert (inside["sum"].to_numpy() <= top["service_dur_ns"].to_numpy()).all()


def test_service_lasts_to_the_last_send_call_of_a_reply_that_framing_joins(tmp_path: Path) -> None:
    """5 ms of work before each of three send calls: all 15 ms are service, also the 10 after the first call."""
    require_recorder()
    n = 20
    with ports.reserved() as (port,):
        argv = [sys.executable, str(Path(__file__).with_name("pieces.py")), str(port), str(n)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin and server.stdout
            pid = server.stdout.readline().strip()
            go = f"echo > /proc/{server.pid}/fd/0; while [ -e /proc/{pid}/exe ]; do sleep 0.1; done"
            options = ["--payload", "--syscalls", "messages", "--port", str(port)]
            done = subprocess.run(
                [RECORD, "-q", "-o", tmp_path / "pieces.nsight", *options, "--", "sh", "-c", go],
                capture_output=True, text=True, timeout=END_S,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            server.stdin.close()
            assert server.wait(END_S) == 0
    c = nsight_report.open(tmp_path / "pieces.nsight", framing="http")
    made = c.requests[c.requests["role"] == "server"]
    assert len(made) == n and (made["n_reply_messages"] == 1).all() and (made["join"] == "framing:http").all()
    sent = c.stored_messages.rows(made["reply_message_id"].to_numpy())
    assert (sent["n_reads"] == 3).all() and (sent["call_ns"].to_numpy() == made["first_send_ns"]).all()
    assert (made["last_send_ns"] - made["first_send_ns"] >= 10_000_000).all()
    assert (made["service_dur_ns"] >= 15_000_000).all()
    # The median: a call may be interrupted.
    assert made["transmit_dur_ns"].median() < 5_000_000
    assert (made["latency_ns"] == made.filter(like="dur_ns").sum(axis=1)).all()


def test_requests_of_a_pool_pass_from_the_reader_to_a_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four clients and two workers that sleep 2 ms per request: a request is handed over, or waits for a worker that has another one."""
    require_recorder()
    n = 60
    with ports.reserved() as (port,):
        argv = [sys.executable, str(Path(__file__).with_name("pool.py")), str(port), str(n)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin and server.stdout
            pid = server.stdout.readline().strip()
            go = f"echo > /proc/{server.pid}/fd/0; while [ -e /proc/{pid}/exe ]; do sleep 0.1; done"
            done = subprocess.run(
                [RECORD, "-q", "-o", tmp_path / "pool.nsight", "--port", str(port), "--", "sh", "-c", go],
                capture_output=True, text=True, timeout=END_S,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            server.stdin.close()
            assert server.wait(END_S) == 0
    c = nsight_report.open(tmp_path / "pool.nsight")
    rows = c.requests.set_index("request_id")
    assert len(rows) == 4 * n and (rows["role"] == "server").all()
    assert rows["tid"].nunique() == 1 and rows["reply_tid"].nunique() == 2
    work = c.work(rows.index.tolist())
    whole = work.groupby("request_id").agg({"start_ns": "min", "end_ns": "max"})
    assert (whole["start_ns"] == rows["read_ns"]).all() and (whole["end_ns"] == rows["last_send_ns"]).all()
    first, last = (getattr(work.groupby("request_id"), name)() for name in ("first", "last"))
    assert (first["tid"] == rows["tid"]).all() and (first["how"] == "read").all()
    assert (last["tid"] == rows["reply_tid"]).all() and last["how"].isin(
        ["hand-over", "lock", "memory"]
    ).all()
    # A worker that was woken for the request sleeps 2 ms afterwards.
    took = (last["end_ns"] - last["start_ns"])[last["how"] != "memory"]
    assert (took >= 2_000_000).all()
    # With more clients than workers some wait for a worker's other request.
    queued = work[work["how"] == "queued"]
    assert len(queued) > 0
    slowest = int(queued.loc[(queued["end_ns"] - queued["start_ns"]).idxmax(), "request_id"])
    assert main(["show", str(tmp_path / "pool.nsight"), str(slowest)]) == 0
    assert "had another request" in capsys.readouterr().out
    c = nsight_report.open(tmp_path / "pool.nsight", direction="request", slow=f"id:{slowest}")
    hands = json.loads(page_data.lifetimes(Sheet.of(c, summarise(c)))[slowest])["hands"]
    assert [part[3] for part in hands].count("had another request") == (queued["request_id"] == slowest).sum()
    assert sum(ns for _, _, ns, *_ in hands) == rows.loc[slowest, "service_dur_ns"]
    perfetto.export(c, str(slowest), tmp_path / "pool.pftrace")
    trace = published.Trace()
    trace.ParseFromString((tmp_path / "pool.pftrace").read_bytes())
    drawn = [p for p in trace.packet if "hands" in p.track_event.categories]
    mine = work[work["request_id"] == slowest]
    assert [p.timestamp for p in drawn] == mine["start_ns"].tolist()
    passed = [p for p in trace.packet if "hand-over" in p.track_event.categories]
    assert len({p.track_event.track_uuid for p in passed}) == mine["tid"].nunique() == 2


NGINX = """
daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log;
events {{}}
http {{
  access_log off; client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};
  uwsgi_temp_path {directory}; scgi_temp_path {directory};
  server {{
    listen 127.0.0.1:{port} http2;
    location /quick {{ return 204; }}
    location /slow {{ alias {directory}/slow; limit_rate 50k; }}  # the first 50 kB at once, the last ones after 0.4 s
  }}
}}
"""
SLOW_BYTES = 70_000


def listens(port: int) -> None:
    """Wait until a server listens."""
    end = time.monotonic() + END_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < end, "nginx does not listen"
            time.sleep(0.02)


def test_requests_of_http2_that_are_in_flight_together_are_joined_by_their_stream(tmp_path: Path) -> None:
    """Six slow requests, and sixty quick ones while they wait; the client logs when each was sent and answered."""
    require_recorder()
    for name in ("nginx", "tcpdump"):
        if not on_path(name):
            skip_or_fail("testbed", f"{name} is not installed")
    (tmp_path / "slow").write_bytes(bytes(SLOW_BYTES))
    paths = ["/slow"] * 6 + ["/quick"] * 60
    with ports.reserved() as (port,):
        (tmp_path / "nginx.conf").write_text(NGINX.format(directory=tmp_path, port=port))
        nginx = subprocess.Popen(["nginx", "-e", tmp_path / "error.log", "-c", tmp_path / "nginx.conf"])
        try:
            listens(port)
            client = [sys.executable, http2.__file__, str(port), "0.003", str(END_S), *paths]
            done = subprocess.run(
                [RECORD, "-q", "-o", tmp_path / "h2.nsight", "--port", str(port), "--payload", "--", *client],
                capture_output=True, text=True, timeout=END_S,
            )  # fmt: skip
        finally:
            nginx.terminate()
            nginx.wait(END_S)
    assert done.returncode == 0, done.stderr
    answered = pd.DataFrame.from_dict(json.loads(done.stdout), "index")
    capture = nsight_report.open(tmp_path / "h2.nsight", framing="http2")
    names = ["message_id", "request_type", "nbytes", "stream_id"]
    messages = capture.stored_messages.columns(names).set_index("message_id")
    made = capture.requests
    made = made[made["role"] == "server"]
    assert (made["join"] == "framing:http2").all()
    asked, replies = (messages.loc[made[name]] for name in ("request_id", "reply_message_id"))
    assert (asked["stream_id"].to_numpy() == replies["stream_id"].to_numpy()).all()
    assert sorted(asked["stream_id"]) == sorted(answered.index.astype(int))
    truth = answered.loc[asked["stream_id"].astype(int).astype(str)]
    is_slow = (truth["path"] == "/slow").to_numpy()
    assert asked["request_type"].tolist() == ["GET"] * len(paths)
    assert replies["request_type"].tolist() == ["200" if slow else "204" for slow in is_slow]
    assert (asked["nbytes"].to_numpy() == truth["nbytes"].to_numpy()).all()
    assert (replies["nbytes"].to_numpy() == truth["reply_nbytes"].to_numpy()).all()
    assert made["certain"].all()
    assert (made["first_ns"].to_numpy() > truth["sent_ns"].to_numpy()).all()
    assert (made["last_ns"].to_numpy() < truth["received_ns"].to_numpy()).all()
    # Quick ones were answered while slow ones waited: they cannot be joined by order.
    assert truth.loc[~is_slow, "received_ns"].min() < truth.loc[is_slow, "received_ns"].min()
