# SPDX-License-Identifier: GPL-2.0-only
"""nsight-decode on committed captures: symbols, slices, windows, files that are damaged or of the wrong kind."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import socket
import struct
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from machinery.pt_emulation.fixtures import unpack

from conftest import skip_or_fail
from decode import edges, parity
from decode.damage import AUXTRACE, records

pytestmark = pytest.mark.tools

SEED = 20261121
N_DAMAGED = 60
#: A damaged file must not make it use more processor time (which does not depend on other load) or memory than this.
SECONDS, BYTES = 60, 3 << 30
HANGS_S = 10 * SECONDS

FLAGS = {"call": 1, "return": 2, "syscall": 3, "sysret": 4, "hw int": 5, "iret": 6, "int": 10}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All committed captures."""
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    where = tmp_path_factory.mktemp("decode")
    for name in unpack.names():
        unpack.unpack(name, where)
    return where


@pytest.fixture(scope="module")
def quiet(directory: Path) -> Path:
    """The capture without a disturbance."""
    return directory / "quiet"


def data_of(capture: Path) -> Path:
    return capture / "capture.nsight" / "perf.data"


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    """The program, with limits."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    command = [str(parity.NATIVE), *map(str, argv)]
    # S603 and the preexec_fn: one thread, an argument list
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=HANGS_S, preexec_fn=limit
    )


def decoded(capture: Path, out: Path, *options: str | Path) -> edges.Stream:
    done = run("edges", data_of(capture), "--symfs", capture / "symfs", "-o", out, *options)
    assert done.returncode == 0, done.stderr
    return edges.read(out)


# -- the same as perf -----------------------------------------------------------------------

LINE = re.compile(
    r"\s*(-?\d+)/(-?\d+)\s+\[(\d+)\]\s+[\d.]+:\s+(.*?)\s+([0-9a-f]+) (.*?) =>\s+([0-9a-f]+) (.*?)\s*$"
)


def by_perf(capture: Path) -> list[tuple[int, int, int, int, int, str, str]]:
    """perf's text: kind, from, to, pid, tid, and the names of these addresses."""
    argv = ["perf", "script", "-i", data_of(capture), "--symfs", capture / "symfs", "--itrace=cr"]
    argv += ["-F", "cpu,pid,tid,time,ip,addr,flags,sym"]
    text = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=True).stdout
    rows = []
    for line in text.splitlines():
        found = LINE.match(line)
        assert found, line
        pid, tid, _, flags, start, from_sym, end, to_sym = found.groups()
        kind = 7 if flags.startswith("tr strt") else 8 if flags.startswith("tr end") else FLAGS[flags]
        rows.append((kind, int(start, 16), int(end, 16), int(pid), int(tid), from_sym, to_sym))
    return rows


@pytest.mark.parametrize("name", [n for n in unpack.names() if n != "overflow"])
def test_edges_threads_and_symbols_are_those_of_stock_perf(
    directory: Path, tmp_path: Path, name: str
) -> None:
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    stream = decoded(directory / name, tmp_path / "e")
    rows = stream.edges[stream.edges["kind"] != parity.TAIL]
    expected = by_perf(directory / name)
    assert len(rows) == len(expected) > 10_000
    names = [symbol for symbol, _ in stream.symbols]
    other_names: Counter[tuple[str, str]] = Counter()
    for row, (kind, start, end, pid, tid, *symbols) in zip(rows, expected, strict=True):
        mine = tuple(int(row[c]) for c in ("kind", "from", "to", "pid", "tid"))
        assert mine == (kind, start, end, pid, tid)
        for number, symbol in zip((row["from_sym"], row["to_sym"]), symbols, strict=True):
            if (names[number] or "[unknown]") != symbol:
                other_names[symbol, names[number]] += 1
    # Entries of the PLT, which perf 6.1 calls by the section in front of them, or not at all.
    assert not [pair for pair in other_names if "@plt" not in "".join(pair)], other_names


# -- slices, threads, windows ---------------------------------------------------------------


@pytest.mark.parametrize("name", unpack.names())
def test_slices_and_threads_do_not_change_a_byte(directory: Path, tmp_path: Path, name: str) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    decoded(directory / name, whole, "--slice-bytes", "1000000000", "--jobs", "1")
    decoded(directory / name, cut, "--slice-bytes", "1", "--jobs", "5")
    assert whole.read_bytes() == cut.read_bytes()


def test_a_window_has_the_edges_of_its_time_and_no_others(quiet: Path, tmp_path: Path) -> None:
    rows = decoded(quiet, tmp_path / "all").edges
    first, last = int(rows["time"][0]), int(rows["time"][-1])
    middle = (first + last) // 2
    windows = [(middle - 50_000, middle + 10_000), (middle + 200_000, middle + 250_000), (last + 1, last + 9)]
    (tmp_path / "windows").write_text("# begin end\n" + "".join(f"{a} {b}\n" for a, b in windows[1:]))
    some = decoded(
        quiet, tmp_path / "some", "--time", "{}-{}".format(*windows[0]), "--time", f"@{tmp_path}/windows"
    )
    time = rows["time"].astype(np.int64)
    inside = np.zeros(len(rows), bool)
    for begin, end in windows:
        inside |= (begin <= time) & (time <= end)
    assert 100 < inside.sum() < len(rows) / 2
    columns = ["time", "from", "to", "pid", "tid", "cpu", "kind"]
    assert some.edges[columns].tolist() == rows[inside][columns].tolist()


def test_a_window_of_one_cpu_is_of_no_other(quiet: Path, tmp_path: Path) -> None:
    rows = decoded(quiet, tmp_path / "all").edges
    begin, end = int(rows["time"][100]), int(rows["time"][2000])
    every, own, other = (
        decoded(quiet, tmp_path / f"some{of}", "--time", f"{begin}-{end}{of}").edges
        for of in ("", ":0", ":1")
    )
    assert set(rows["cpu"]) == {0}
    assert own.tolist() == every.tolist()
    assert len(own) > 1900
    assert len(other) == 0


def test_a_window_costs_what_it_holds(quiet: Path, tmp_path: Path) -> None:
    done = run("edges", data_of(quiet), "--symfs", quiet / "symfs", "-o", tmp_path / "all")
    counts = [
        run("edges", data_of(quiet), "--symfs", quiet / "symfs", "-o", tmp_path / "some", "--time", "1-2"),
        done,
    ]
    decoded_mb = [float(re.search(r"([\d.]+) MB of Intel PT", d.stderr)[1]) for d in counts]  # type: ignore[index]
    assert decoded_mb[0] == 0.0 < decoded_mb[1]


# -- calls ----------------------------------------------------------------------------------


def test_calls_nest_tile_and_are_the_same_from_an_edge_file(quiet: Path, tmp_path: Path) -> None:
    done = run("calls", data_of(quiet), "--symfs", quiet / "symfs", "--out", tmp_path / "calls")
    assert done.returncode == 0, done.stderr
    decoded(quiet, tmp_path / "e")
    assert run("build", tmp_path / "e", "--out", tmp_path / "built").returncode == 0
    tables = [ds.dataset(tmp_path / d / "calls").to_table() for d in ("calls", "built")]
    assert tables[0].equals(tables[1])
    rows = tables[0].to_pydict()
    by_id = {number: at for at, number in enumerate(rows["call_id"])}
    begin = np.array(rows["start_ns"])
    end = begin + np.array(rows["dur_ns"])
    parents = np.array([by_id.get(p, -1) for p in rows["parent_id"]])
    inner = parents >= 0
    assert (begin[inner] >= begin[parents[inner]]).all()
    assert (end[inner] <= end[parents[inner]]).all()
    top = ~inner
    assert (begin[top][1:] == end[top][:-1]).all()  # one core: threads follow each other
    assert sum(rows["self_ns"]) == end.max() - begin.min()
    account = json.loads((tmp_path / "calls" / "calls.json").read_text())
    assert account["rows"] == len(begin)
    assert 0 < account["granularity_ns"]["median"] < account["granularity_ns"]["p99"]


@pytest.mark.parametrize("name", ["quiet", "lock"])
def test_calls_of_a_window_are_those_of_the_whole(directory: Path, tmp_path: Path, name: str) -> None:
    capture = directory / name
    given = ["calls", data_of(capture), "--symfs", capture / "symfs", "--out"]
    assert run(*given, tmp_path / "all").returncode == 0
    rows = ds.dataset(tmp_path / "all" / "calls").to_table()
    start = rows["start_ns"].to_numpy()
    first, last = int(start.min()), int(start.max())
    third = (last - first) // 3
    windows = [(first + third, first + third + 90_000), (first + 2 * third, first + 2 * third + 40_000)]
    options = [o for window in windows for o in ("--time", "{}-{}".format(*window))]
    assert run(*given, tmp_path / "some", *options).returncode == 0

    def within(table: pa.Table) -> list[tuple[object, ...]]:
        """Calls that begin and end in a window and whose begin was recorded: earlier begins are unknown there."""
        names = (
            "start_ns",
            "dur_ns",
            "self_ns",
            "kind",
            "symbol",
            "dso",
            "pid",
            "tid",
            "start_addr",
            "end_known",
        )
        begin, dur = table["start_ns"].to_numpy(), table["dur_ns"].to_numpy()
        inside = np.zeros(len(begin), bool)
        for a, b in windows:
            inside |= (a < begin) & (begin + dur < b)
        inside &= np.array([known == "measured" for known in table["start_known"].to_pylist()], bool)
        chosen = table.filter(pa.array(inside))
        return list(zip(*(chosen[c].to_pylist() for c in names), strict=True))

    expected = within(rows)
    assert len(expected) > 100
    assert within(ds.dataset(tmp_path / "some" / "calls").to_table()) == expected


def test_an_overflow_is_a_gap_and_a_loss(directory: Path, tmp_path: Path) -> None:
    capture = directory / "overflow"
    done = run("calls", data_of(capture), "--symfs", capture / "symfs", "--out", tmp_path)
    assert "processor lost trace packets: 1:" in done.stderr
    (path,) = (tmp_path / "calls").iterdir()
    rows = pq.read_table(path).to_pylist()
    gaps = [row for row in rows if row["kind"] == "gap"]
    assert [gap["gap_cause"] for gap in gaps] == ["overflow"]
    assert gaps[0]["dur_ns"] > 0
    assert any(row["end_known"] == "missing" for row in rows)
    (loss,) = json.loads((tmp_path / "calls.json").read_text())["losses"]
    assert (loss["severity"], loss["count"]) == ("error", 1)


# -- files and options that are none; more in test_errors.py ------------------------------


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    for name in ("none", "empty", "directory"):
        done = run("edges", tmp_path / name, "-o", tmp_path / "e")
        assert done.returncode == 3 and "hint: give a perf.data file" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "argv", [[], ["nothing"], ["edges"], ["edges", "x", "-o", "y", "--jobs", "z"]], ids=str
)
def test_wrong_usage(argv: list[str]) -> None:
    assert run(*argv).returncode == 2


def test_windows_that_are_none(quiet: Path, tmp_path: Path) -> None:
    done = run("edges", data_of(quiet), "-o", tmp_path / "e", "--time", "9-5")
    assert done.returncode == 2 and "ends before it begins" in done.stderr


def test_output_that_cannot_be_written(quiet: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for argv in (
        ["edges", data_of(quiet), "-o", tmp_path],
        ["calls", data_of(quiet), "--out", tmp_path / "file"],
    ):
        assert run(*argv).returncode == 5


def test_an_edge_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "e").write_bytes(b"something else")
    done = run("build", tmp_path / "e", "--out", tmp_path / "out")
    assert done.returncode == 3 and "no edge file" in done.stderr


# -- missing code ---------------------------------------------------------------------------


def test_without_programs_the_kernel_is_decoded_and_the_rest_is_told(quiet: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    out = tmp_path / "e"
    done = run("edges", data_of(quiet), "--symfs", tmp_path / "root", "-o", out)
    assert done.returncode == 0
    assert "code is missing" in done.stderr and "code missing: /usr/" in done.stderr
    stream = edges.read(out)
    assert (stream.events["code"] == 1).any()
    known = stream.edges["from"] >> np.uint64(63) == 1
    assert known.sum() > 1000


def keys(stream: edges.Stream) -> list[tuple[int, ...]]:
    """Transfers within the trace: time, kind, both addresses."""
    rows = parity.stacked(stream)
    rows = rows[~np.isin(rows["kind"], (parity.BEGIN, parity.END))]
    return [tuple(row) for row in rows[["time", "kind", "from", "to"]].tolist()]


@pytest.mark.parametrize("lacks", ["libc.so.6", "memcached", "kcore", "everything"])
def test_behind_missing_code_decoding_goes_on_at_the_next_address(
    quiet: Path, tmp_path: Path, lacks: str
) -> None:
    """No less than perf keeps, nothing that did not happen, and the same result for slices of any size."""
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    symfs, data = tmp_path / "symfs", data_of(quiet)
    if lacks == "everything":
        symfs.mkdir()
    else:
        shutil.copytree(quiet / "symfs", symfs)
        for path in [p for p in symfs.rglob("*") if p.name == lacks]:
            path.unlink()
    if lacks == "kcore":
        data = data / "data"
    streams = [
        parity.by_native(data, symfs, tmp_path, *options)
        for options in ([], ["--slice-bytes", "1", "--jobs", "5"], ["--slice-bytes", "1000000000"])
    ]
    for stream in streams[1:]:
        assert (stream.edges == streams[0].edges).all() and (stream.events == streams[0].events).all()
    mine = keys(streams[0])
    # In order, and at the same time: packets after a gap carry time just as those before it.
    whole = iter(keys(decoded(quiet, tmp_path / "whole")))
    strangers = [
        key
        for key in mine
        if not any(key[1:] == other[1:] and abs(key[0] - other[0]) < 500 for other in whole)
    ]
    assert not strangers
    by_perf = keys(parity.by_perf(data, symfs, tmp_path, "nsight.py"))
    assert len(mine) >= len(by_perf) > 40_000
    # perf reports a missing object once, however much is lost.
    assert (streams[0].events["code"] == 1).sum() > 20


@pytest.mark.parametrize("name", unpack.names())
def test_every_branch_and_event_has_a_packet_of_its_own(directory: Path, tmp_path: Path, name: str) -> None:
    """libipt's events are in the packets in that order: no time is taken from libipt."""
    capture = directory / name
    done = run("edges", data_of(capture), "--symfs", capture / "symfs", "-o", tmp_path / "e")
    assert done.returncode == 0
    assert "less exact times" not in done.stderr


def test_files_of_this_machine_are_not_used_for_a_recording_of_another(quiet: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    without = run("edges", data_of(quiet), "--symfs", tmp_path / "nothing", "-o", tmp_path / "without")
    done = run("edges", data_of(quiet), "-o", tmp_path / "default")
    assert "of another machine, and no --symfs was given" in done.stderr
    assert (tmp_path / "default").read_bytes() == (tmp_path / "without").read_bytes()
    # By its name in the file's header, a field of 64 bytes.
    data = bytearray((data_of(quiet) / "data").read_bytes())
    at = data.index(b"guest".ljust(64, b"\0"))
    data[at : at + 64] = socket.gethostname().encode().ljust(64, b"\0")[:64]
    (tmp_path / "data").write_bytes(data)
    done = run("edges", tmp_path / "data", "--kcore", data_of(quiet) / "kcore_dir", "-o", tmp_path / "own")
    assert "of another machine" not in done.stderr and without.returncode == done.returncode == 0


def test_links_of_a_recorded_machine_stay_below_its_root(quiet: Path, tmp_path: Path) -> None:
    symfs, aside = tmp_path / "symfs", tmp_path / "aside"
    shutil.copytree(quiet / "symfs", symfs)
    (program,) = [p for p in symfs.rglob("memcached") if p.is_file()]
    whole = decoded(quiet, tmp_path / "whole").edges
    shutil.move(program, aside)
    program.symlink_to(aside)  # out of it
    done = run("edges", data_of(quiet), "--symfs", symfs, "-o", tmp_path / "out")
    assert "code missing: /usr/bin/memcached" in done.stderr
    assert "a link leads out of --symfs: copy the file there" in done.stderr
    assert len(edges.read(tmp_path / "out").edges) < len(whole)
    # An absolute link is relative to the recorded machine's root, and is followed there.
    shutil.move(aside, symfs / "aside")
    program.unlink()
    program.symlink_to("/aside")
    done = run("edges", data_of(quiet), "--symfs", symfs, "-o", tmp_path / "in")
    assert "memcached" not in done.stderr
    assert (edges.read(tmp_path / "in").edges == whole).all()


@pytest.mark.parametrize("name", ["kcore", "kallsyms", "data"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(quiet: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / "p"
    shutil.copytree(data_of(quiet), place)
    (path,) = place.rglob(name)
    path.unlink()
    os.mkfifo(path)
    done = run("edges", place, "--symfs", quiet / "symfs", "-o", tmp_path / "out")
    assert done.returncode == 3
    assert f"{name}: no regular file" in done.stderr


def test_without_kcore_it_says_so(quiet: Path, tmp_path: Path) -> None:
    done = run("edges", data_of(quiet) / "data", "--symfs", quiet / "symfs", "-o", tmp_path / "e")
    assert done.returncode == 0
    assert "kernel image missing" in done.stderr and "--kcore" in done.stderr


def test_another_version_of_a_program_is_not_used(quiet: Path, tmp_path: Path) -> None:
    """A build id in the mapping's record: 20 bytes in place of device and inode."""
    data = bytearray((data_of(quiet) / "data").read_bytes())
    shutil.copytree(data_of(quiet) / "kcore_dir", tmp_path / "p" / "kcore_dir")
    changed = 0
    for at, kind, length in records(bytes(data)):
        if kind == 10 and b"/libc.so.6\0" in data[at : at + length]:
            misc = struct.unpack_from("<H", data, at + 4)[0]
            struct.pack_into("<H", data, at + 4, misc | 1 << 14)
            data[at + 40 : at + 64] = bytes([20, 0, 0, 0]) + bytes(range(20))
            changed += 1
    assert changed
    (tmp_path / "p" / "data").write_bytes(data)
    done = run("edges", tmp_path / "p", "--symfs", quiet / "symfs", "-o", tmp_path / "e")
    assert done.returncode == 0
    assert re.search(r"libc\.so\.6: [\d,]+: another version: its build id is \w{40}, ", done.stderr)
    assert "000102030405060708090a0b0c0d0e0f10111213" in done.stderr


# -- damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_file_is_decoded_as_far_as_it_goes(quiet: Path, tmp_path: Path, part: float) -> None:
    data = (data_of(quiet) / "data").read_bytes()
    shutil.copytree(data_of(quiet) / "kcore_dir", tmp_path / "p" / "kcore_dir")
    pieces = [at for at, kind, _ in records(data) if kind == AUXTRACE]
    # within the PT data
    cut = int(pieces[0] + (len(data) - pieces[0]) * part * (0.5 if part < 0.5 else 1))
    (tmp_path / "p" / "data").write_bytes(data[:cut])
    done = run("edges", tmp_path / "p", "--symfs", quiet / "symfs", "-o", tmp_path / "e")
    assert done.returncode in (0, 4), done.stderr
    assert "cut" in done.stderr or "killed" in done.stderr
    if done.returncode == 0:
        # perf writes the code of BPF programs behind everything: what they do is missing, no more
        assert "header features" in done.stderr
        streams = [edges.read(tmp_path / "e"), decoded(quiet, tmp_path / "whole")]
        errors = int((streams[0].events["code"] == 1).sum())
        rows = [s.edges[s.edges["from"] != 0] for s in streams]
        some, whole = ({tuple(row) for row in r[["time", "from", "to"]].tolist()} for r in rows)
        # behind an error the first may have the time of the packet where decoding went on
        assert len(some) > 1000 and len(some - whole) <= errors + 1


def test_a_cut_edge_file_is_built_as_far_as_it_goes(quiet: Path, tmp_path: Path) -> None:
    decoded(quiet, tmp_path / "e")
    content = (tmp_path / "e").read_bytes()
    (tmp_path / "e").write_bytes(content[: len(content) * 2 // 3])
    done = run("build", tmp_path / "e", "--out", tmp_path / "out")
    assert done.returncode == 0 and "its end is missing" in done.stderr


def damaged(content: bytes, rng: random.Random) -> bytes:
    """One to eight damages: within records, packets and numbers of the header."""
    made = bytearray(content)
    found = records(content)
    pieces = [at for at, kind, _ in found if kind == AUXTRACE]
    others = [at for at, kind, _ in found if kind != AUXTRACE]
    for _ in range(rng.randint(1, 8)):
        where = rng.random()
        if where < 0.5:  # packets
            begin = rng.choice(pieces) + 48
            at = begin + rng.randrange(60_000)
        elif where < 0.7:
            at = rng.choice(pieces) + rng.randrange(48)
        elif where < 0.9:
            at = rng.choice(others) + rng.randrange(64)
        else:
            at = rng.randrange(104) if rng.random() < 0.5 else rng.randrange(len(made) - 20_000, len(made))
        at = min(at, len(made) - 8)
        if rng.random() < 0.5:
            made[at] ^= 1 << rng.randrange(8)
        else:
            value = rng.choice([0, 1, 7, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1])
            width = rng.choice("BHIQ")
            struct.pack_into("<" + width, made, at, value & ((1 << 8 * struct.calcsize(width)) - 1))
    return bytes(made)


def test_damaged_files_neither_crash_nor_hang(quiet: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    content = (data_of(quiet) / "data").read_bytes()
    place = tmp_path / "p"
    place.mkdir()
    (place / "kcore_dir").symlink_to(data_of(quiet) / "kcore_dir")
    codes: Counter[int] = Counter()
    for number in range(int(os.environ.get("NSIGHT_FUZZ", N_DAMAGED))):
        (place / "data").write_bytes(damaged(content, rng))
        done = run("calls", place, "--symfs", quiet / "symfs", "--out", tmp_path / "out", "--jobs", "2")
        what = f"seed {SEED} number {number}: {done.stderr[-2000:]}"
        assert done.returncode in (0, 3, 4), what
        assert "panicked" not in done.stderr, what
        codes[done.returncode] += 1
    assert codes[0] > sum(codes.values()) / 3, codes  # most damages leave something to decode


def damaged_elf(content: bytes, rng: random.Random) -> bytes:
    """A damaged ELF file: numbers of its headers and tables rather than its code, or cut."""
    made = bytearray(content)
    programs, sections = struct.unpack_from("<QQ", made, 32)
    n_programs, size, n_sections = (struct.unpack_from("<H", made, at)[0] for at in (56, 58, 60))
    for _ in range(rng.randint(1, 6)):
        bases = [(0, 64), (programs, 56 * n_programs), (sections, size * n_sections)]
        # what sections hold: symbols, notes, strings, relocations of the PLT
        for number in range(n_sections):
            at = sections + size * number
            if at + 64 <= len(made):
                kind, _, _, begin, length = struct.unpack_from("<IQQQQ", made, at + 4)
                if kind in (2, 3, 4, 7, 11) and 0 < length < len(made):
                    bases.append((begin, length))
        begin, length = rng.choice(bases)
        at = min(begin + rng.randrange(max(length, 1)), len(made) - 8)
        if at < 4:
            continue
        value = rng.choice([0, 1, 0x7F, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 47, 1 << 63, (1 << 64) - 1])
        width = rng.choice("BHIQ")
        struct.pack_into("<" + width, made, at, value & ((1 << 8 * struct.calcsize(width)) - 1))
    return bytes(made[: rng.randrange(len(made))] if rng.random() < 0.1 else made)


def damaged_text(content: bytes, rng: random.Random) -> bytes:
    """Damaged lines of kallsyms."""
    made = bytearray(content)
    for _ in range(rng.randint(1, 30)):
        at = rng.randrange(len(made))
        if rng.random() < 0.5:
            made[at] = rng.choice(b"\n\t \0f0\xff[")
        else:
            made[at : at + rng.randrange(40)] = bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
    return bytes(made)


def test_damaged_code_files_neither_crash_nor_hang(quiet: Path, tmp_path: Path) -> None:
    """kcore, kallsyms, the vDSO and programs: of another machine, or made to harm."""
    rng = random.Random(SEED)
    symfs, place = tmp_path / "symfs", tmp_path / "p"
    shutil.copytree(quiet / "symfs", symfs)
    shutil.copytree(data_of(quiet), place)
    files = [place / "kcore_dir" / "kcore", place / "kcore_dir" / "kallsyms", symfs / "vdso.so"]
    files += [path for path in symfs.rglob("*") if path.name in ("memcached", "libc.so.6", "nsight-load")]
    assert len(files) == 6
    originals = {path: path.read_bytes() for path in files}
    codes: Counter[int] = Counter()
    for number in range(int(os.environ.get("NSIGHT_FUZZ", N_DAMAGED))):
        path = rng.choice(files)
        damage = damaged_text if path.name == "kallsyms" else damaged_elf
        path.write_bytes(damage(originals[path], rng))
        done = run("calls", place, "--symfs", symfs, "--out", tmp_path / "out", "--jobs", "2")
        path.write_bytes(originals[path])
        what = f"seed {SEED} number {number} {path.name}: {done.stderr[-2000:]}"
        assert done.returncode in (0, 3), what
        assert "panicked" not in done.stderr, what
        codes[done.returncode] += 1
    assert codes[0] > sum(codes.values()) / 2, codes


def test_damaged_edge_files_neither_crash_nor_hang(quiet: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    rows = decoded(quiet, tmp_path / "e", "--time", "0-99999999999999")
    assert len(rows.edges) > 1000
    content = (tmp_path / "e").read_bytes()[:3_000_000]
    for number in range(N_DAMAGED // 2):
        made = bytearray(content)
        for _ in range(rng.randint(1, 6)):
            made[rng.randrange(8, len(made))] ^= 1 << rng.randrange(8)
        (tmp_path / "d").write_bytes(made)
        done = run("build", tmp_path / "d", "--out", tmp_path / "out")
        assert done.returncode in (0, 3), f"number {number}: {done.stderr[-2000:]}"


# -- info, and Rust's own tests -------------------------------------------------------------


def test_info_tells_what_was_recorded(quiet: Path) -> None:
    done = run("info", data_of(quiet))
    assert done.returncode == 0
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert lines["traced"] == "kernel and user code"
    assert lines["timing"] == "TSC, CYC"
    assert re.search(r"^cpu 0 +[\d,]+ bytes, \d+ PSBs, 1 pieces, [\d.]+ to [\d.]+ s$", done.stdout, re.M)


def test_units() -> None:
    """Packets, side-band, images, slices, rows: Rust's own tests."""
    if not shutil.which("cargo") or not parity.NATIVE.exists():
        skip_or_fail("decoder", "cargo or nsight-decode is not there (hint: make decoder)")
    done = subprocess.run(
        ["cargo", "test", "-q", "--release", "--locked"],
        cwd=parity.TOP / "tools" / "nsight-decode",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    passed = [int(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("test result")]
    assert sum(passed) > 60
