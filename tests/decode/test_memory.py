# SPDX-License-Identifier: GPL-2.0-only
"""Memory that nsight-decode needs, and its behaviour under a limit: with nsight-report's limit, and with less than it needs."""

from __future__ import annotations

import filecmp
import json
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest
from machinery.pt_emulation.fixtures import unpack
from nsight_report.capture import native

from conftest import skip_or_fail
from decode import edges, parity
from decode import packets as pt

pytestmark = pytest.mark.tools


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    return unpack.unpack("quiet", tmp_path_factory.mktemp("memory"))


def calls(capture: Path, out: Path, jobs: int, limit: int) -> subprocess.CompletedProcess[str]:
    argv = [parity.NATIVE, "calls", capture / "capture.nsight/perf.data", "--symfs", capture / "symfs"]
    argv += ["--out", out, "--jobs", jobs, "--slice-bytes", 40_000]
    return subprocess.run(
        [*map(str, argv)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """All but where the calls were written."""
    return done.stderr.splitlines()[1:]


@pytest.fixture(scope="module")
def whole(quiet: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Calls without a memory limit, and the messages about them."""
    out = tmp_path_factory.mktemp("whole")
    done = calls(quiet, out, 1, resource.RLIM_INFINITY)
    assert done.returncode == 0, done.stderr
    return out, said(done)


def same(a: Path, b: Path) -> bool:
    return bool(ds.dataset(a / "calls").to_table().equals(ds.dataset(b / "calls").to_table()))


def test_eight_threads_need_no_more_than_is_granted(
    quiet: Path, whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    size = (quiet / "capture.nsight/perf.data").stat().st_size
    done = calls(quiet, tmp_path, 8, native.granted(8, size))
    assert (done.returncode, said(done)) == (0, whole[1])
    assert same(tmp_path, whole[0])


def test_memory_that_is_short_is_no_damage_of_the_recording(
    quiet: Path, whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Whether memory suffices or not: if there is no error, the output is complete."""
    codes = set()
    for limit in range(60 << 20, 300 << 20, 30 << 20):
        done = calls(quiet, tmp_path, 1, limit)
        codes.add(done.returncode)
        if done.returncode == 0:
            assert said(done) == whole[1] and same(tmp_path, whole[0])
        else:
            assert done.returncode == 5, (limit, done.stderr)
            assert "hint: fewer --jobs" in done.stderr
    assert 5 in codes


#: Runs a program, and prints the most memory that it had, in KiB. A process that is much larger would hide it: the kernel begins to
#: count with the memory of the process that called exec.
WATCHED = """
import os, sys
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(process, 0)
print(used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
#: Compressed returns in a program of tiny functions: each byte of trace is three times call, return, jump.
DENSE = pt.tnt(True, False, True, False, True, False)


def most_mib(*argv: str | Path) -> int:
    done = subprocess.run([sys.executable, "-S", "-c", WATCHED, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]) >> 10


def dense(n_cores: int, directory: Path) -> Path:
    """9 million calls and returns behind one PSB, on one core or at the same times on several."""
    trace = pt.psb(1000) + (pt.cyc(10) + DENSE) * ((3 << 19) // n_cores)
    traces = {(cpu, pt.PID): [trace] for cpu in range(n_cores)}
    return pt.Recording(traces, config=pt.TSC | pt.CYC).write(directory)


@pytest.mark.parametrize("n_cores", [1, 3])
def test_a_trace_with_one_psb_needs_no_more_memory_than_others(n_cores: int, tmp_path: Path) -> None:
    """As items in memory, the calls and returns would be 400 MB."""
    argv = [parity.NATIVE, "edges", dense(n_cores, tmp_path), "--symfs", tmp_path / "symfs", "-o"]
    found = [most_mib(*argv, tmp_path / jobs, "--jobs", jobs) for jobs in ("1", "2")]
    assert max(found) < 128, found
    assert filecmp.cmp(tmp_path / "1", tmp_path / "2", shallow=False)


@pytest.mark.parametrize("n_cores", [1, 3])
def test_calls_of_threads_that_never_leave_their_cores_are_cut(n_cores: int, tmp_path: Path) -> None:
    """As rows in memory, the calls would be 380 MB."""
    argv = [parity.NATIVE, "calls", dense(n_cores, tmp_path), "--symfs", tmp_path / "symfs", "--out"]
    found = [most_mib(*argv, tmp_path / jobs, "--jobs", jobs) for jobs in ("1", "2")]
    assert max(found) < 256, found
    one, two = (ds.dataset(tmp_path / jobs / "calls").to_table() for jobs in ("1", "2"))
    assert one.equals(two)
    ledger = {
        row["key"]: row["count"] for row in json.loads((tmp_path / "2/calls.json").read_text())["losses"]
    }
    # 4,718,592 calls; at most 1,310,720 rows are kept, of all cores together.
    assert n_cores > 1 or ledger["calls_cut"] == 3
    assert one.filter(ds.field("kind") == "function").num_rows >= 9 << 19


#: A packet that reports nothing (MNT), in 11 bytes.
NOTHING = b"\x02\xc3\x88" + bytes(8)
#: main calls leaf, goes round its loop once, and is at its begin again.
ROUND = pt.cyc(10) + pt.tip(pt.LOOP) + pt.cyc(10) + pt.tnt(True) + pt.cyc(10) + pt.tnt(False)


def test_psbs_that_are_far_apart_need_no_memory(tmp_path: Path) -> None:
    """Two cores with one PSB each, in the pieces that perf takes; and all of the file is read, 84 MB."""
    n_pieces, n_rounds = 10, 1000
    piece = (NOTHING * 95 + ROUND) * 3800
    whole = pt.psb(1000) + ROUND * n_rounds + piece * n_pieces
    pieces = [whole[at : at + (4 << 20)] for at in range(0, len(whole), 4 << 20)]
    data = pt.Recording({(cpu, pt.PID): pieces for cpu in range(2)}).write(tmp_path)
    argv = [parity.NATIVE, "edges", data, "--symfs", tmp_path / "symfs", "--jobs", "2", "-o"]
    assert most_mib(*argv, tmp_path / "edges") < 64
    # A call and a return a round, and where decoding begins.
    found = edges.read(tmp_path / "edges").edges
    assert len(found) == 2 * (2 * (n_rounds + 3800 * n_pieces) + 1)


def test_damage_in_a_long_slice_loses_what_it_does_in_a_short_one(tmp_path: Path) -> None:
    """Decoding goes on at the next packet with an address; what was read before is not in memory any more."""
    found = []
    for between in (b"", NOTHING * 200_000):
        parts = [pt.psb(1000), ROUND * 10, between, pt.OVF, pt.fup(pt.MAIN), ROUND * 5, between, pt.tip(0x99)]
        parts += [between, pt.tip(pt.MAIN), ROUND * 5]
        directory = tmp_path / str(len(between))
        data = pt.Recording({(0, pt.PID): [b"".join(parts)]}).write(directory)
        argv = [parity.NATIVE, "edges", data, "--symfs", directory / "symfs", "-o", directory / "edges"]
        subprocess.run([*map(str, argv)], check=True, capture_output=True)
        stream = edges.read(directory / "edges")
        found.append((stream.edges.tolist(), stream.events.tolist()))
    assert found[0] == found[1]
    assert len(found[0][0]) > 40


def test_many_cores_need_hardly_more_memory_than_few(tmp_path: Path) -> None:
    """64 cores run at the same times. As items in memory, 256 KiB of each core's trace would be 150 MB."""
    unit, n_units, n_psbs = pt.cyc(10) + DENSE + (pt.cyc(10) + pt.tnt(*[True] * 6)) * 17, 455, 18
    step = 180 * n_units
    trace = b"".join(pt.psb(1000 + step * n) + unit * n_units + pt.cyc(10) + DENSE for n in range(n_psbs))
    traces = {(cpu, pt.PID + cpu): [trace] for cpu in range(64)}
    data = pt.Recording(traces, config=pt.TSC | pt.CYC).write(tmp_path)
    argv = [parity.NATIVE, "edges", data, "--symfs", tmp_path / "symfs", "--jobs", "2", "-q", "-o"]
    assert most_mib(*argv, tmp_path / "edges") < 128


@pytest.mark.parametrize("end", [b"", pt.psb(1 << 24, pt.LOOP) + ROUND], ids=["one PSB", "two"])
def test_marks_without_branches_need_no_memory(tmp_path: Path, end: bytes) -> None:
    """700,000 marks of C-states, 39 MB as items in memory. Each needs as much time as the one before."""
    n = 700_000
    trace = pt.psb(1000) + ROUND + (pt.cyc(10) + b"\x02\x22\0\x10") * n + ROUND + end
    data = pt.Recording({(0, pt.PID): [trace]}).write(tmp_path)
    argv = [parity.NATIVE, "edges", data, "--symfs", tmp_path / "symfs", "-o"]
    assert most_mib(*argv, tmp_path / "edges") < 64
    events = edges.read(tmp_path / "edges").events
    assert (events["code"] == 6).sum() == n


def test_rows_of_marks_are_cut_like_those_of_calls(tmp_path: Path) -> None:
    trace = pt.psb(1000) + ROUND + (pt.cyc(10) + b"\x02\x22\0\x10") * 1_400_000 + ROUND
    data = pt.Recording({(0, pt.PID): [trace]}).write(tmp_path)
    argv = [parity.NATIVE, "calls", data, "--symfs", tmp_path / "symfs", "--out", tmp_path / "calls"]
    subprocess.run([*map(str, argv)], check=True, capture_output=True)
    ledger = {
        row["key"]: row["count"] for row in json.loads((tmp_path / "calls/calls.json").read_text())["losses"]
    }
    assert ledger["calls_cut"] == 1


def test_switches_of_threads_are_in_memory_once(tmp_path: Path) -> None:
    """Half a million records of a core, of 40 bytes each; as events, they would be as many bytes once more."""
    ids = [struct.pack("<IIQIIQ", pt.PID, pt.PID, 1100 + n, 0, 0, 1) for n in range(1 << 19)]
    switches = [pt.record(14, (n & 1) << 13, one) for n, one in enumerate(ids)]
    data = pt.Recording({(0, pt.PID): [pt.psb(1000) + ROUND * 10]}, extra=switches).write(tmp_path)
    argv = [parity.NATIVE, "edges", data, "--symfs", tmp_path / "symfs", "-o"]
    assert most_mib(*argv, tmp_path / "edges") < 47
    codes = edges.read(tmp_path / "edges").events["code"]
    assert np.isin(codes, (8, 9)).sum() == 1 << 19


def with_switches(n: int, directory: Path) -> Path:
    """A short trace of a core, and ``n`` records of its switches; the first of each thousand is too late in the file."""
    fields = [(name, "<u4") for name in ("type", "head", "pid", "tid")]
    fields += [("time", "<u8"), ("cpu", "<u4"), ("reserved", "<u4"), ("id", "<u8")]
    rows = np.zeros(n, fields)
    rows["type"], rows["pid"], rows["tid"], rows["id"] = 14, pt.PID, np.arange(n) % 1000, 1
    rows["head"] = 40 << 16 | (np.arange(n) & 1) << 13
    rows["time"] = 1100 + np.arange(n) // 1000 * 1000 + (np.arange(n) + 1) % 1000
    return pt.Recording({(0, pt.PID): [pt.psb(1000) + ROUND * 10]}, extra=[rows.tobytes()]).write(directory)


def test_any_number_of_switches_needs_no_more_memory(tmp_path: Path) -> None:
    """Two million records: 16 MiB of them in memory, all of them in the temporary file, none missing and in order."""
    data = with_switches(n := 2_000_000, tmp_path)
    argv = [parity.NATIVE, "calls", data, "--symfs", tmp_path / "symfs", "--out", tmp_path / "calls"]
    assert most_mib(*argv) < 47
    argv = [parity.NATIVE, "edges", data, "--symfs", tmp_path / "symfs", "-o", tmp_path / "edges"]
    assert most_mib(*argv) < 47
    events = edges.read(tmp_path / "edges").events
    switches = events[np.isin(events["code"], (8, 9))]
    assert (switches["time"] == 1100 + np.arange(n)).all()
    assert (switches["tid"] == (np.arange(n) - 1) % 1000).all()


def test_without_room_for_switches_the_cure_is_named(tmp_path: Path) -> None:
    data = with_switches(1 << 20, tmp_path)
    argv = [parity.NATIVE, "info", data, "--symfs", tmp_path / "symfs"]
    environment = {"TMPDIR": str(tmp_path / "missing")}
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, env=environment)
    assert done.returncode == 5 and "missing: no temporary file" in done.stderr, done.stderr
    assert "hint: set TMPDIR to a directory" in done.stderr
