# SPDX-License-Identifier: GPL-2.0-only
"""nsight-record.bt on this kernel: every event kind exact to the byte, filters, counts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bpftrace.probe_run import ROOT, check_counts, check_traffic, record
from machinery.testbed import ports

from conftest import skip_or_fail

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def needs() -> None:
    if os.geteuid():
        skip_or_fail("bpf", "probes need root")
    if not shutil.which("bpftrace"):
        skip_or_fail("bpf", "bpftrace is not installed")
    if not any(
        Path(p, "events/sock/sk_data_ready").exists()
        for p in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
    ):
        skip_or_fail("bpf", "tracefs is not mounted, or the kernel is older than 6.3")


@pytest.fixture
def port(needs: None) -> Iterator[int]:
    """A port that only this test uses: the probes see the whole machine."""
    with ports.reserved() as (number,):
        yield number


def test_every_kind_of_event_has_the_right_bytes(port, tmp_path):
    output, truth = record("nsight-record.bt", tmp_path / "o", port, port)
    check_traffic(output, truth)
    check_counts(output)
    assert output.counts["ack"] > 0
    assert set(output.lines()) == set("AHRSXO")


def test_filter_by_port_leaves_other_ports_out(port, tmp_path):
    with ports.reserved() as (other,):
        output, _ = record("nsight-record.bt", tmp_path / "o", port, other)
    assert output.events == []


def test_filter_by_pid_leaves_reads_and_sends_of_others_out(port, tmp_path):
    output, _ = record("nsight-record.bt", tmp_path / "o", port, port, 1)
    assert output.of("R") == output.of("S") == []
    assert output.of("A") != []  # a packet has no process


def test_filter_by_namespace_leaves_other_namespaces_out(port, tmp_path):
    here = Path("/proc/self/ns/net").stat().st_ino
    output, truth = record("nsight-record.bt", tmp_path / "a", port, port, 0, 0, 0, here)
    check_traffic(output, truth)
    output, _ = record("nsight-record.bt", tmp_path / "b", port, port, 0, 0, 0, here + 1)
    # X stays: on a veth pair the sender lives in another namespace.
    assert set(output.lines()) == {"X"}


@pytest.mark.parametrize(("direction", "kinds"), [(1, "AHRXO"), (2, "SXO")])
def test_filter_by_direction(port, tmp_path, direction, kinds):
    output, _ = record("nsight-record.bt", tmp_path / "o", port, port, 0, 0, 0, 0, direction)
    assert set(output.lines()) == set(kinds)


@pytest.mark.trixie
def test_newer_bpftrace_prints_the_same(port, tmp_path):
    if not shutil.which("debootstrap"):
        skip_or_fail("trixie", "debootstrap is not installed")
    trixie = ROOT / "tests/machinery/guest/trixie"
    ready = subprocess.run([trixie, "bpftrace", "--version"], capture_output=True, text=True, timeout=600)
    if ready.returncode == 125:
        skip_or_fail("trixie", ready.stderr.strip())
    version = tuple(int(n) for n in ready.stdout.split("v")[-1].split(".")[:2])
    assert version >= (0, 23)
    output, truth = record("nsight-record.bt", tmp_path / "o", port, port, bpftrace=[str(trixie), "bpftrace"])
    check_traffic(output, truth)
    check_counts(output)


def test_filter_by_interface_leaves_other_interfaces_out(port, tmp_path):
    loopback = int(Path("/sys/class/net/lo/ifindex").read_text())
    output, truth = record("nsight-record.bt", tmp_path / "a", port, port, 0, 0, loopback)
    check_traffic(output, truth)
    output, _ = record("nsight-record.bt", tmp_path / "b", port, port, 0, 0, loopback + 1000)
    assert output.of("A") == []


def test_filter_by_cgroup_leaves_sockets_of_others_out(port, tmp_path):
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((m[1] for m in mounts if m[2] == "cgroup2"), None)
    if root is None:
        skip_or_fail("bpf", "no cgroup2 is mounted")
    path = next(p[3:] for p in Path("/proc/self/cgroup").read_text().splitlines() if p.startswith("0::"))
    own = Path(root + path).stat().st_ino
    output, truth = record("nsight-record.bt", tmp_path / "a", port, port, 0, own)
    check_traffic(output, truth)
    output, truth = record("nsight-record.bt", tmp_path / "b", port, port, 0, own + 1000)
    assert output.of("R") == output.of("S") == output.of("H") == output.of("O") == []
    # A packet has no cgroup: packets that waited for a read are printed, and so freed, when their connection closes.
    for port_of in (c["client_port"] for c in truth["connections"] if c["proto"] == 6):
        assert [e["len"] for e in output.of("A", rport=port_of) if e["len"] > 0] == [10, 20, 30]
