# SPDX-License-Identifier: GPL-2.0-only
"""The BPF recorder on stock Debian kernels in guests: what it records, and what it reports if it cannot record."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import kernels
import nsight_report
import pytest
from machinery.guest.retried import GuestUnavailable, run_guest
from nsight_record import collect
from recorder_run import manifest
from test_collect_live import MESSAGE, SYSCALL, File, read
from test_memory_live import check, found, told

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.guest, pytest.mark.slow]

READ, SEND = (MESSAGE | stamp << 2 for stamp in (2, 3))


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Directory with the output of tests/record/in_guest.py on a kernel."""

    def run(kernel: str, what: str) -> Path:
        for program in ("qemu-system-x86_64", "busybox"):
            if not shutil.which(program):
                skip_or_fail("guest", f"{program} is not installed")
        if collect.find() is None:
            skip_or_fail("bpf", "nsight-collect is not built")
        directory = tmp_path_factory.mktemp("guest")
        options = [
            "--kernel",
            kernel,
            "--rw",
            str(directory),
            "--timeout",
            "900",
            "--take-turns",
            "--append",
            "numa=fake=2",
        ]
        inside = str(ROOT / "tests/record/in_guest.py")
        try:
            done = run_guest([*options, "--", sys.executable, inside, str(directory), what])
        except GuestUnavailable as e:
            skip_or_fail("guest", str(e))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        return directory

    return run


@pytest.fixture(scope="module", params=["6.12", "newest"])
def recorded(guest: Callable[[str, str], Path], request: pytest.FixtureRequest) -> Path:
    return guest(request.param, "records")


def test_memory_work_is_most_of_the_calls_that_ask_for_it(recorded: Path) -> None:
    calls = told(recorded / "memory.calls")
    assert set(calls["what"]) == {"reclaim", "compaction", "migration"}
    # Reclaim consists of many short pieces, and an emulated processor takes long for the probes between them.
    check(found(recorded / "memory.nsight"), calls, least=0.2)


def files(capture: Path) -> list[File]:
    found = [read(p) for p in (capture / "records").glob("cpu-*.records")]
    assert len(found) == 2
    return found


def n_of(capture: Path, kind: int) -> int:
    return sum(f.present[kind] for f in files(capture))


def missed(capture: Path) -> dict[str, int]:
    return collect.missed(capture / "collect.log")


def test_every_request_is_recorded_and_nothing_is_lost(
    recorded: Path, request: pytest.FixtureRequest
) -> None:
    capture = recorded / "plain.nsight"
    m = manifest(capture)
    assert (m["state"], m["recorder_kind"]) == ("complete", "bpf")
    assert sum(loss["count"] for loss in m["losses"]) == sum(missed(capture).values())
    assert m["host"]["kernel"] == kernels.fetch(request.node.callspec.params["recorded"]).release
    assert n_of(capture, SEND) == m["events"]["produced"]["S"]
    assert n_of(capture, SEND) + missed(capture).get("on_sock_send_length", 0) == 100
    assert n_of(capture, READ) + missed(capture).get("on_sock_recv_length", 0) >= 100
    assert n_of(capture, SYSCALL) > 200
    assert all(f.ended and not f.missing() for f in files(capture))


def test_a_core_that_goes_off_leaves_every_record_accounted_for(recorded: Path) -> None:
    capture = recorded / "offline.nsight"
    m = manifest(capture)
    assert m["state"] == "complete"
    # 7.3 can preempt a thread in a BPF program, and does not run that program for other threads meanwhile.
    assert {loss["what"].split(" that ")[0] for loss in m["losses"]} <= {
        f"runs of {p}" for p in missed(capture)
    }
    assert n_of(capture, SEND) + missed(capture).get("on_sock_send_length", 0) == 80
    assert all(f.ended and not f.missing() for f in files(capture))
    assert all(f.present.total() for f in files(capture))


def test_the_flight_recorder_writes_a_window(recorded: Path) -> None:
    (capture,) = (recorded / "flight").glob("*.nsight")
    assert manifest(capture)["flight"]["triggers"][0]["reason"] == "asked"
    # Only the server sends here. The manifest of a window has the number of skipped runs, but not per program.
    left_out = sum(loss["count"] for loss in manifest(capture)["losses"] if "left out" in loss["what"])
    assert 50 - left_out <= n_of(capture, SEND) <= 50
    assert all(f.ended and not f.missing() for f in files(capture))


@pytest.mark.parametrize("recorded", ["6.12"], indirect=True)
def test_kernel_text_of_a_window_is_what_perf_itself_would_have_copied(recorded: Path) -> None:
    sizes = json.loads((recorded / "kernel-text.json").read_text())
    assert set(sizes["copied"]) == {"kcore", "kallsyms", "modules"}
    assert sizes["copied"]["kcore"] > 10 << 20
    assert {n: sizes["copied"][n] for n in ("kcore", "modules")} == {
        n: sizes["perf"][n] for n in ("kcore", "modules")
    }


def test_what_a_guest_recorded_is_read(recorded: Path) -> None:
    capture = recorded / "plain.nsight"
    messages = nsight_report.open(str(capture)).messages
    found = len(messages[(messages["direction"] == "rx") & (messages["nbytes"] == 64)])
    assert found + missed(capture).get("on_sock_recv_length", 0) == 100


def test_what_a_thread_of_the_kernel_reads_has_no_descriptor(guest: Callable[[str, str], Path]) -> None:
    """A network block device: a worker of the kernel reads its blocks. Requests are sent by who reads the device, in another call."""
    messages = nsight_report.open(str(guest("6.12", "nbd") / "nbd.nsight")).messages
    server = messages.loc[messages["direction"] == "tx"].query("nbytes > 4096")["lport"].iloc[0]
    of_kernel = messages[messages["rport"] == server]
    read, sent = (of_kernel[of_kernel["direction"] == direction] for direction in ("rx", "tx"))
    assert read["nbytes"].sum() > 1 << 20
    assert set(read["comm"].astype(str).str.partition("/")[0]) == {"kworker"}
    assert len(sent) > 0
    assert set(read["fd"]) == set(sent["fd"]) == {-1}
    assert read["call_ns"].isna().all()


def test_a_kernel_without_the_tracepoints_is_told_and_the_scripts_record(
    guest: Callable[[str, str], Path],
) -> None:
    said = json.loads((guest("6.1", "preflight") / "preflight.json").read_text())
    code, text = said["bpf"]
    assert code == 4
    assert "this kernel lacks tracepoint" in text
    assert "--recorder bpftrace" in text
    assert said["auto"][0] == 0, said["auto"][1]
