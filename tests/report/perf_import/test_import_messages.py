# SPDX-License-Identifier: GPL-2.0-only
"""Message events from the tracepoints of a socket's receive queue: hand-offs, reads, arrivals, their cores and threads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nsight_report
import pandas as pd
import pytest
from nsight_report.errors import BadInput
from nsight_report.perf_import import import_perf_data
from nsight_report.pipeline import Pipeline
from nsight_report.tables.data_frames import to_pandas
from recording import NS, Recording, mapped
from world import (
    BEGIN,
    HOG,
    MONO,
    MS,
    REAL,
    US,
    WORKER,
    busy_server,
    machine,
    request,
    socket,
    switch,
    update,
)

ROOT = Path(__file__).resolve().parents[3]
T = BEGIN + 100 * US  # perf time of the first event


class Imported:
    """Tables and losses of a capture up to its messages: a comparison needs more than one message."""

    def __init__(self, made: Recording, tmp_path: Path, **options: Any) -> None:
        switch(made, BEGIN + US, 1, (0, b"swapper/1"), (WORKER, b"mc-worker"))
        update(made, BEGIN + 50 * MS)
        capture = import_perf_data(made.write(tmp_path / "perf.data"), **options).capture
        pipeline = Pipeline(capture, diagnosed=False)
        pipeline.run()
        self.messages = to_pandas(pipeline.table("messages"))
        self.losses = {r["cause"]: r["count"] for r in pipeline.losses().to_pylist()}


def imported(made: Recording, tmp_path: Path, **options: Any) -> Imported:
    """The capture imported from a recording, with the events that every recording has."""
    return Imported(made, tmp_path, **options)


def only(frame: pd.DataFrame) -> pd.Series[Any]:
    assert len(frame) == 1
    return frame.iloc[0]


def test_one_request_has_its_stamps_cores_thread_and_descriptor(tmp_path: Path) -> None:
    made = machine()
    request(made, T, pos=1000, length=30, read_at=T + 40 * US)
    message = only(imported(made, tmp_path).messages)
    # Perf time is 5000 s behind CLOCK_MONOTONIC: arrival +5, hand-off +8, call +38, read +40 us.
    stamps = ("arrival_ns", "arrival_last_ns", "handoff_ns", "call_ns", "app_ns")
    assert [message[s] - MONO - T for s in stamps] == [5 * US, 5 * US, 8 * US, 38 * US, 40 * US]
    assert (message["recv_cpu"], message["handoff_cpu"], message["app_cpu"]) == (0, 0, 1)
    assert (message["tid"], message["comm"], message["fd"], message["timestamps"]) == (
        WORKER,
        "mc-worker",
        7,
        "ahr",
    )
    assert (message["lport"], message["rport"], message["nbytes"], message["direction"]) == (
        11211,
        40000,
        30,
        "rx",
    )


def test_read_of_two_packets_is_one_message_handed_off_with_the_second(tmp_path: Path) -> None:
    made = machine()
    for at, pos, skb in ((T, 0xFFFFFFF0, 0xA00), (T + 10 * US, 4, 0xB00)):  # the sequence number wraps
        made.sample("net:netif_receive_skb", at, skbaddr=skb, len=60)
        socket(made, "sock_data_queued", at + US, pos=pos, length=20, skb=skb)
    made.sample("raw_syscalls:sys_enter", T + 19 * US, tid=WORKER, id=0)
    socket(made, "sock_data_read", T + 20 * US, pos=0xFFFFFFF0, length=20, skb=0xA00, tid=WORKER)
    socket(made, "sock_data_read", T + 21 * US, pos=4, length=20, skb=0xB00, tid=WORKER)
    made.sample("raw_syscalls:sys_exit", T + 22 * US, tid=WORKER)
    message = only(imported(made, tmp_path).messages)
    assert (message["nbytes"], message["n_arrivals"]) == (40, 2)
    assert [message[s] - MONO - T for s in ("arrival_ns", "arrival_last_ns", "handoff_ns", "app_ns")] == [
        0, 10 * US, 11 * US, 21 * US,
    ]  # fmt: skip


def test_two_reads_of_two_calls_stay_two_messages(tmp_path: Path) -> None:
    made = machine()
    for number in range(2):
        request(
            made, T + number * 100 * US, pos=20 * number, length=20, read_at=T + number * 100 * US + 20 * US
        )
    assert imported(made, tmp_path).messages["nbytes"].tolist() == [20, 20]


def test_reads_after_the_call_has_returned_are_not_joined_to_it(tmp_path: Path) -> None:
    """For example those of an io_uring worker: no system call of the thread made them."""
    made = machine()
    made.sample("raw_syscalls:sys_enter", T, tid=WORKER)
    made.sample("raw_syscalls:sys_exit", T + US, tid=WORKER)
    for number in range(2):
        socket(made, "sock_data_read", T + (2 + number) * US, pos=20 * number, length=20, tid=WORKER)
    messages = imported(made, tmp_path).messages
    assert messages["nbytes"].tolist() == [20, 20]
    assert messages["call_ns"].isna().all() and messages["fd"].tolist() == [-1, -1]


def test_without_system_calls_each_packet_is_a_message_and_that_is_said(tmp_path: Path) -> None:
    names = tuple(n for n in Recording().names if not n.startswith("raw_syscalls"))
    made = machine(names=names)
    for number in range(2):
        socket(made, "sock_data_read", T + number * US, pos=20 * number, length=20, tid=WORKER)
    capture = imported(made, tmp_path)
    assert len(capture.messages) == 2
    assert capture.losses["system calls not recorded"] == 1


def test_connections_of_unknown_addresses_and_equal_ports_are_kept_apart(tmp_path: Path) -> None:
    """Two clients of different hosts with the same port take turns: by ports alone they would be one stream."""
    made = machine()
    for number in range(6):
        at = T + number * 100 * US
        request(
            made, at, pos=1000 + 30 * (number // 2), length=30, read_at=at + 20 * US, cookie=0x51 + number % 2
        )
    capture = imported(made, tmp_path)
    assert capture.messages.groupby("conn_id").size().tolist() == [3, 3]
    assert set(capture.messages["timestamps"].astype(str)) == {"ahr"}
    assert capture.losses["address of a socket unknown"] == 2


def test_addresses_come_from_events_of_tcp(tmp_path: Path) -> None:
    made = machine()
    request(made, T, pos=0, length=30, read_at=T + 20 * US)
    made.sample(
        "tcp:tcp_rcv_space_adjust", T + 21 * US, tid=WORKER, sock_cookie=0x51, sport=11211, dport=40000, family=2,
        saddr_v6=mapped("10.0.0.1"), daddr_v6=mapped("192.168.3.4"),
    )  # fmt: skip
    message = only(imported(made, tmp_path).messages)
    assert (message["laddr"], message["raddr"]) == ("10.0.0.1", "192.168.3.4")


def test_change_of_state_names_the_socket_whose_address_and_ports_it_has(tmp_path: Path) -> None:
    made = machine()
    ends = {"saddr_v6": mapped("10.0.0.1"), "daddr_v6": mapped("192.168.3.4"), "sport": 11211}
    made.sample("sock:inet_sock_set_state", T - US, skaddr=0xABC0, dport=40000, **ends)
    # another socket that later had the same memory
    ends["daddr_v6"] = mapped("192.168.9.9")
    made.sample("sock:inet_sock_set_state", T + 90 * US, skaddr=0xABC0, dport=40001, **ends)
    socket(made, "sock_data_read", T, pos=0, length=9, tid=WORKER, skaddr=0xABC0)
    assert only(imported(made, tmp_path).messages)["raddr"] == "192.168.3.4"


def test_addresses_come_from_a_list_of_sockets(tmp_path: Path) -> None:
    made = machine()
    socket(made, "sock_data_read", T, pos=0, length=9, tid=WORKER, family=10)
    sockets = tmp_path / "sockets.txt"
    sockets.write_text(
        "tcp LISTEN 0 128 0.0.0.0:11211 0.0.0.0:* ino:1 sk:50 <->\n"
        "tcp ESTAB 0 0 [fd00::1]%eth0:11211 [fd00::2]:40000 uid:65534 ino:1290 sk:51 <->\n"
    )
    message = only(imported(made, tmp_path, listed=[sockets]).messages)
    assert (message["laddr"], message["raddr"]) == ("fd00::1", "fd00::2")
    sockets.write_text("tcp ESTAB 0 0 10.0.0.1:11211 10.0.0.2:40000\n")
    with pytest.raises(BadInput, match="no socket with its cookie"):
        import_perf_data(tmp_path / "perf.data", tmp_path / "other", listed=[sockets])


def test_software_stamp_of_realtime_is_the_arrival_and_one_of_another_clock_is_not(tmp_path: Path) -> None:
    made = machine()
    wall = T - 3 * US + MONO + REAL
    stamps = (wall, wall - REAL, wall + 5 * MS)  # receive timestamp; the sender's, as on veth; a clock ahead
    for number, stamp in enumerate(stamps):
        at = T + number * 100 * US
        socket(made, "sock_data_queued", at, pos=10 * number, length=10, tstamp=stamp + number * 100 * US)
        socket(made, "sock_data_read", at + US, pos=10 * number, length=10, tid=WORKER)
    capture = imported(made, tmp_path)
    arrival = capture.messages["arrival_ns"]
    assert arrival[0] - MONO == T - 3 * US and arrival[1:].isna().all()
    assert capture.messages["timestamps"].astype(str).tolist() == ["ahr", "hr", "hr"]
    assert capture.losses["software timestamps not used"] == 2


def test_an_address_that_is_used_again_gives_its_old_arrival_to_nobody(tmp_path: Path) -> None:
    made = machine()
    made.sample("net:netif_receive_skb", T, skbaddr=0xA00, len=60)
    for number in range(2):  # the arrival of the second is missing
        socket(made, "sock_data_queued", T + (1 + number) * US, pos=10 * number, length=10, skb=0xA00)
        socket(made, "sock_data_read", T + (8 + number) * US, pos=10 * number, length=10, tid=WORKER)
    capture = imported(made, tmp_path)
    assert capture.messages["arrival_ns"].isna().tolist() == [False, True]
    assert capture.losses["hand-off without arrival"] == 1


def test_data_put_into_a_waiting_acknowledgement_has_not_its_arrival(tmp_path: Path) -> None:
    """As tcp_add_to_backlog() does while the application holds the socket; seen on a real kernel."""
    made = machine()
    made.sample("net:netif_receive_skb", T, skbaddr=0xA00, len=52)
    made.sample("net:netif_receive_skb", T + 100 * US, skbaddr=0xB00, len=70)
    socket(made, "sock_data_queued", T + 200 * US, pos=0, length=18, skb=0xA00)
    socket(made, "sock_data_read", T + 210 * US, pos=0, length=18, tid=WORKER)
    capture = imported(made, tmp_path)
    assert pd.isna(only(capture.messages)["arrival_ns"])
    assert capture.losses["hand-off without arrival"] == 1


def phc_lines(first_ns: int, n: int, skew_ns: int) -> str:
    """Readings, every 10 ms, of a NIC clock that is 1000 s and ``skew_ns`` ahead of CLOCK_REALTIME; each takes 200 ns."""
    mono = first_ns - REAL
    tsc = 2 * (mono - MONO)
    lines = [
        "#nsight-clock 1 tsc_khz=2000000 clocksource=tsc",
        f"B\tmonotonic\t{tsc - 100}\t{mono}\t{tsc + 100}",
    ]
    for number in range(n):
        wall = first_ns + number * 10 * MS
        lines.append(f"P\tphc:ptp0\textended\t{wall}\t{wall + 1000 * NS + skew_ns + 100}\t{wall + 200}")
    return "\n".join([*lines, "E\t0\t0\t0\t0\t0", ""])


@pytest.mark.parametrize("arrives", [True, False])
def test_hardware_stamp_is_converted_with_readings_of_the_nic_s_clock(tmp_path: Path, arrives: bool) -> None:
    """Also if only the hand-off carries the timestamp; the receive core is then the core of the hand-off."""
    made = machine()
    nic = T - 7 * US
    if arrives:
        made.sample("net:netif_receive_skb", T - US, cpu=0, skbaddr=0xFF00, len=60)
    stamp = nic + MONO + REAL + 1000 * NS + 12_345
    socket(made, "sock_data_queued", T, pos=0, length=10, cpu=0, hwtstamp=stamp)
    socket(made, "sock_data_read", T + US, pos=0, length=10, tid=WORKER, cpu=1)
    readings = tmp_path / "clock.tsv"
    readings.write_text(phc_lines(BEGIN + US + MONO + REAL, 4, 12_345))
    message = only(imported(made, tmp_path, beside=readings).messages)
    assert message["nic_source"] == "hw" and message["nic_error_ns"] <= 300
    assert abs(message["nic_ns"] - MONO - nic) <= message["nic_error_ns"]
    assert message["timestamps"] == ("nahr" if arrives else "nhr")
    assert (message["first_ns"], message["recv_cpu"]) == (message["nic_ns"], 0)


def test_hardware_stamp_of_a_clock_nobody_read_is_counted_and_not_used(tmp_path: Path) -> None:
    made = machine()
    socket(made, "sock_data_queued", T, pos=0, length=10, hwtstamp=T + MONO + REAL)
    socket(made, "sock_data_read", T + US, pos=0, length=10, tid=WORKER)
    capture = imported(made, tmp_path)
    assert pd.isna(only(capture.messages)["nic_ns"])
    assert capture.losses["hardware timestamps without a NIC clock"] == 1


UDP = {"protocol": 17, "pos": 0, "dport": 0}


def test_datagrams_are_paired_by_their_skb_although_they_come_in_a_batch_and_a_read_is_lost(
    tmp_path: Path,
) -> None:
    """Three arrive, then three are handed off, and the first one's read was lost: matched by order, each would get the wrong one."""
    made = machine()
    for number in range(3):
        made.sample("net:netif_receive_skb", T + number * US, skbaddr=0xA00 + number, len=58)
    for number in range(3):
        socket(made, "sock_data_queued", T + (5 + number) * US, length=30, skb=0xA00 + number, **UDP)
    for number in (1, 2):
        socket(
            made, "sock_data_read", T + (50 + number) * US, length=30, skb=0xA00 + number, tid=WORKER, **UDP
        )
    capture = imported(made, tmp_path)
    messages = capture.messages
    assert (messages["arrival_ns"] - MONO - T).tolist() == [US, 2 * US]
    assert (messages["handoff_ns"] - MONO - T).tolist() == [6 * US, 7 * US]
    assert (messages["app_ns"] - MONO - T).tolist() == [51 * US, 52 * US]
    assert messages["proto"].tolist() == [17, 17] and capture.losses["datagrams not read"] == 1
    assert "datagrams dropped before the socket" not in capture.losses


def test_datagram_whose_hand_off_is_lost_takes_nobody_else_s(tmp_path: Path) -> None:
    made = machine()
    socket(made, "sock_data_queued", T, length=30, skb=0xA00, **UDP)
    for number in range(2):  # the second uses the memory of the first
        socket(made, "sock_data_read", T + (10 + number) * US, length=30, skb=0xA00, tid=WORKER, **UDP)
    handoff = imported(made, tmp_path).messages.sort_values("app_ns")["handoff_ns"]
    assert handoff.isna().tolist() == [False, True]


def test_names_of_threads_are_those_of_their_time(tmp_path: Path) -> None:
    made = machine()
    switch(made, T, 1, (WORKER, b"mc-worker"), (HOG, b"python3"))
    switch(made, T + US, 1, (HOG, b"hog"), (WORKER, b"mc-worker"))  # it was called hog before
    socket(made, "sock_data_read", T + 2 * US, pos=0, length=10, tid=HOG)
    assert only(imported(made, tmp_path).messages)["comm"] == "hog"


def test_fields_are_those_that_the_kernel_series_give_the_events() -> None:
    """Read from the patches: a hand-made recording would repeat a name that is misspelt here."""
    source = (ROOT / "tools/nsight-report/native/tracepoint_fields.c").read_text()
    patches = {
        "timekeeping_update": ROOT / "kernel-patches/timekeeping",
        "SOCK_FIELDS": ROOT / "kernel-patches/net",
    }
    for name, directory in patches.items():
        wanted = source.partition(f'"{name}"' if name.islower() else f"define {name}")[2]
        fields = set(re.findall(r'\{"(\w+)", 0\}', wanted.partition("}}")[0] + "}"))
        assert len(fields) >= 10
        for base in sorted(directory.iterdir()):
            given = "".join(p.read_text() for p in base.glob("000[1-3]-*.patch"))
            assert fields <= set(re.findall(r"^\+\s*__field\([^,]+,\s*(\w+)\)", given, re.M)), base


def test_server_whose_core_a_hog_takes_is_told_so(tmp_path: Path) -> None:
    """1,000 requests; every 100th waits for the 2 ms in which the hog has its core, so these are the slowest 1 %."""
    made = machine()
    busy_server(made)
    capture = nsight_report.open(import_perf_data(made.write(tmp_path / "perf.data")).capture)
    assert capture.manifest.mode == "tracepoints" and not capture.manifest.cut
    first = capture.causes.iloc[0]
    assert (first["cause"], first["n_messages"]) == ("hog (A)", 10)
    assert abs(first["median_deviation_ns"] - 2 * MS) < 20 * US
