# SPDX-License-Identifier: GPL-2.0-only
"""Recordings that cannot be decoded, or only in part: each route names file, cause and fix."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from machinery.harness import built
from machinery.pt_emulation.fixtures import unpack

from conftest import skip_or_fail
from decode import damage, edges, parity

pytestmark = pytest.mark.tools

TOP = parity.TOP
#: A good decoder's exit codes: nsight-decode(1), nsight.py(1), nsight-report(1).
DONE, INPUT, NO_PT, PERF = 0, 3, 4, 255


@dataclass(frozen=True)
class Said:
    """How a route ends: exit code, words of its error (of the losses, if it decodes), words of the fix."""

    code: int
    words: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Case:
    """``script``: nsight.py within perf, whose own refusal comes first in some cases."""

    change: Callable[[bytearray], None]
    native: Said
    program: Said
    script: Said | None = None
    report: Said | None = None


def pt_said(native: str, hint: str, words: str, other_cure: str = "intel_pt") -> tuple[Said, Said]:
    """No Intel PT for the native decoder; unusable for the others."""
    return Said(NO_PT, native, hint), Said(INPUT, words, other_cure)


CASES = [
    Case(damage.without_pt, *pt_said("has no Intel PT", "intel_pt//", "no Intel PT in it")),
    Case(damage.amd, *pt_said("AuthenticAMD", "Intel CPU", "no Intel PT in it")),
    Case(damage.arm, *pt_said("CoreSight", "intel_pt//", "ARM CoreSight")),
    Case(
        damage.another_machine, *pt_said("recorded on ppc64le", "only x86_64", "recorded on ppc64le", "x86")
    ),
    # perf decodes code of 32 bits
    Case(damage.i386, Said(NO_PT, "recorded on i686", "only x86_64"), Said(DONE)),
    # Decoded without perf's clock; a report needs it.
    Case(
        damage.no_tsc_clock,
        Said(DONE, "times are TSC ticks", "clocksource"),
        Said(DONE, "no time is known", "clocksource"),
        report=Said(INPUT, "TSC", "clocksource"),
    ),
    Case(
        damage.no_tsc_packets,
        Said(DONE, "recorded without time", "keep tsc=1"),
        Said(DONE),
        report=Said(INPUT, "TSC", "tsc=1"),
    ),
    Case(
        damage.no_aux_data, *pt_said("no Intel PT data", "perf record -a", "nothing was recorded", "longer")
    ),
    Case(damage.cut, *pt_said("no Intel PT data", "SIGINT", "cut before the first data", "SIGINT")),
    # The time between two snapshots is a gap; perf's routes say what to do about it.
    Case(damage.snapshot, Said(DONE), Said(DONE, "snapshot mode", "without -S")),
    # perf decompresses, and refuses what is damaged
    Case(
        damage.compressed,
        Said(INPUT, "compressed", "without -z"),
        Said(NO_PT, "perf failed", "above"),
        script=Said(PERF, "decompress"),
        report=Said(INPUT, "compressed", "without perf record -z"),
    ),
    Case(
        damage.pipe,
        Said(INPUT, "pipe mode", "-o FILE"),
        Said(INPUT, "perf record -o -", "perf inject"),
        report=Said(INPUT, "pipe mode", "-o FILE"),
    ),
    Case(
        damage.big_endian,
        Said(INPUT, "byte order", "x86 only"),
        Said(INPUT, "big-endian", "x86 only"),
        script=Said(PERF, "incompatible file format"),
        report=Said(INPUT, "big-endian", "byte order"),
    ),
    Case(
        damage.no_magic,
        Said(INPUT, "no perf.data file", "perf record"),
        Said(INPUT, "not a perf.data", "perf record"),
        script=Said(PERF, "incompatible file format"),
        report=Said(INPUT, "not a perf.data", "perf record"),
    ),
    Case(
        damage.empty,
        Said(INPUT, "too short", "perf.data"),
        Said(INPUT, "empty", "again"),
        script=Said(PERF, "zero-sized"),
        report=Said(INPUT, "empty file", "perf.log"),
    ),
    Case(
        damage.damaged_header,
        Said(INPUT, "list of events is damaged", "anew"),
        Said(INPUT, "header is damaged", "again"),
        report=Said(INPUT, "damaged header", "again"),
    ),
    Case(damage.no_auxtrace_feature, Said(DONE), Said(DONE)),
    # perf knows no records of types below 64 that it does not know
    Case(
        damage.unknown_records,
        Said(DONE, "records of unknown types: 40", "newer"),
        Said(NO_PT, "perf failed", "above"),
        script=Said(PERF, "unknown events"),
    ),
    Case(
        damage.guest,
        Said(DONE, "code of a virtual machine", "record in the guest"),
        Said(DONE, "a virtual machine was traced", "record in the guest"),
    ),
]

BY_NAME = {case.change.__name__: case for case in CASES}
ROUTES = ("native", "script", "program", "report")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed capture without a disturbance."""
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    built.make(parity.SCRIPTS / "dlfilters")
    return unpack.unpack("quiet", tmp_path_factory.mktemp("errors"))


def run(*argv: str | Path, **options: int) -> subprocess.CompletedProcess[str]:
    """A program, with this tree's packages."""
    env = {**os.environ, "PYTHONPATH": str(TOP / "tools/nsight-report"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [str(a) for a in argv],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
        env=env,
        **options,  # type: ignore[call-overload]
    )


def by_route(route: str, capture: Path, symfs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """One way from perf.data to calls."""
    data = capture / "perf.data"
    match route:
        case "native":
            return run(parity.NATIVE, "edges", data, "--symfs", symfs, "-o", out)
        case "script":
            argv = ["perf", "script", "-i", data, "--symfs", symfs, "--itrace=cre"]
            return run(*argv, "-s", parity.SCRIPTS / "nsight.py")
        case "program":
            argv = [sys.executable, parity.SCRIPTS / "nsight-edges", "-i", data, "-o", out]
            return run(*argv, "--", "--symfs", symfs)
        case _:
            return run(sys.executable, "-m", "nsight_report", capture, "--symfs", symfs)


def expected(case: Case, route: str) -> Said:
    """The messages of a route; nsight-report prints those of the native decoder, and has its own exit code."""
    if route == "native":
        return case.native
    if route == "program":
        return case.program
    if route == "script":
        return case.script or case.program
    # nsight-report prints losses in another form
    found = case.report or case.native
    return Said(DONE) if found.code == DONE else Said(INPUT, found.words, found.hint)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", BY_NAME)
def test_what_cannot_be_decoded_is_named_with_its_fix(
    quiet: Path, tmp_path: Path, name: str, route: str
) -> None:
    capture = tmp_path / "capture"
    shutil.copytree(quiet / "capture.nsight", capture)
    path = capture / "perf.data" / "data"
    data = bytearray(path.read_bytes())
    BY_NAME[name].change(data)
    path.write_bytes(data)
    done = by_route(route, capture, quiet / "symfs", tmp_path / "out")
    said = expected(BY_NAME[name], route)
    everything = done.stdout + done.stderr
    assert done.returncode == said.code, everything
    assert "Traceback" not in everything and "panicked" not in everything
    assert said.words in everything, everything
    if said.code in (DONE, PERF):
        assert said.hint in everything
        return
    lines = done.stderr.splitlines()
    at = next(i for i, line in enumerate(lines) if "error: " in line and said.words in line)
    assert lines[at + 1].startswith("hint: ") and said.hint in lines[at + 1], lines
    if said.words != "perf failed":
        assert str(capture / "perf.data") in lines[at]


def test_of_a_virtual_machine_nothing_is_made_up(quiet: Path, tmp_path: Path) -> None:
    """The host's code is not the guest's: what is decoded from the rest really happened, at the same time."""
    place = tmp_path / "p"
    shutil.copytree(quiet / "capture.nsight/perf.data", place)
    data = bytearray((place / "data").read_bytes())
    damage.guest(data)
    (place / "data").write_bytes(data)

    def keys(where: Path) -> set[tuple[int, ...]]:
        rows = parity.by_native(where, quiet / "symfs", tmp_path).edges
        rows = rows[~np.isin(rows["kind"], (parity.BEGIN, parity.END))]
        return set(rows[["time", "kind", "from", "to"]].tolist())

    whole, host = keys(quiet / "capture.nsight/perf.data"), keys(place)
    assert 0.2 * len(whole) < len(host) < 0.8 * len(whole)
    assert host <= whole


def changed(quiet: Path, directory: Path, change: Callable[[bytearray], None] | None) -> set[tuple[int, ...]]:
    """Time, kind and addresses of the edges that are decoded from a changed recording."""
    directory.mkdir()
    place = directory / "perf.data"
    shutil.copytree(quiet / "capture.nsight/perf.data", place)
    data = bytearray((place / "data").read_bytes())
    if change:
        change(data)
        assert bytes(data) != (place / "data").read_bytes()
    (place / "data").write_bytes(data)
    rows = parity.by_native(place, quiet / "symfs", directory).edges
    rows = rows[~np.isin(rows["kind"], (parity.BEGIN, parity.END))]
    return set(rows[["time", "cpu", "kind", "from", "to"]].tolist())


def test_what_two_snapshots_have_both_is_decoded_once(quiet: Path, tmp_path: Path) -> None:
    """Also without a gap between them: decoding continues as if they were one piece."""
    whole = changed(quiet, tmp_path / "a", damage.without_the_end)
    assert len(whole) > 10_000
    found = changed(quiet, tmp_path / "b", damage.overlapping_snapshots)
    # The packet that is cut at the end, followed by padding, may contain one branch.
    assert found <= whole
    assert len(whole - found) <= 1


def test_between_snapshots_is_a_gap_and_nothing_made_up(quiet: Path, tmp_path: Path) -> None:
    whole = changed(quiet, tmp_path / "a", None)
    apart = changed(quiet, tmp_path / "b", damage.snapshots_apart)
    assert apart <= whole
    assert 0.5 * len(whole) < len(apart) < len(whole)


def test_a_file_that_may_not_be_read_names_who_may(quiet: Path) -> None:
    # Root may read everything, so run as nobody, with programs and a directory for it.
    nobody = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="nsight-denied-") as name:
        directory = Path(name)
        path = directory / "perf.data"
        shutil.copy(quiet / "capture.nsight/perf.data/data", path)
        shutil.copy(parity.NATIVE, directory)
        shutil.copytree(parity.SCRIPTS, directory / "s", ignore=shutil.ignore_patterns("__pycache__"))
        for place in (directory, *directory.rglob("*")):
            place.chmod(0o755)
        path.chmod(0)
        for argv in (
            [directory / parity.NATIVE.name, "info", path],
            ["/usr/bin/python3", directory / "s/nsight-edges", "-i", path, "-o", "/dev/null"],
        ):
            done = run(*argv, **nobody)
            assert done.returncode == INPUT, done.stderr
            assert "ermission denied" in done.stderr and str(path) in done.stderr
            assert "hint: read it as the user who recorded it, or as root" in done.stderr


def vmlinux(kcore_dir: Path, moved: int) -> bytes:
    """An ELF of the kernel as it was linked: ``moved`` bytes below where it ran."""
    kcore = (kcore_dir / "kcore").read_bytes()
    programs, n = struct.unpack_from("<Q", kcore, 32)[0], struct.unpack_from("<H", kcore, 56)[0]
    loads = [struct.unpack_from("<IIQQQQQQ", kcore, programs + 56 * i) for i in range(n)]
    loads = [p for p in loads if p[0] == 1 and p[3] >= 0xFFFFFFFF80000000]
    lines = (kcore_dir / "kallsyms").read_text().splitlines()
    symbols = [line.split() for line in lines if "[" not in line and not line.startswith("0000000000000000")]
    names, table = b"\0", b"\0" * 24
    for address, _, name, *_ in symbols:
        if int(address, 16) >= 0xFFFFFFFF80000000:
            kind = 0x10 if name in ("_text", "_stext") else 0x12  # labels share an address
            table += struct.pack("<IBBHQQ", len(names), kind, 0, 1, int(address, 16) - moved, 0)
            names += name.encode() + b"\0"
    at = 64 + 56 * len(loads)
    headers, content = b"", b""
    for kind, flags, offset, address, _, size, _, _ in loads:
        headers += struct.pack(
            "<IIQQQQQQ", kind, flags, at + len(content), address - moved, 0, size, size, 4096
        )
        content += kcore[offset : offset + size]
    symtab = at + len(content)
    strtab = symtab + len(table)
    sections = strtab + len(names)
    null = b"\0" * 64
    of_symbols = struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, symtab, len(table), 2, 1, 8, 24)
    of_names = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, strtab, len(names), 0, 0, 1, 0)
    elf = b"\x7fELF\2\1\1" + b"\0" * 9
    elf += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, sections, 0, 64, 56, len(loads), 64, 3, 2)
    return elf + headers + content + table + names + null + of_symbols + of_names


@pytest.mark.parametrize("moved", [0, 0x1400000], ids=["not moved", "KASLR"])
def test_a_vmlinux_stands_in_for_kcore(quiet: Path, tmp_path: Path, moved: int) -> None:
    """The kernel's own mapping record shows how far it was moved."""
    place = quiet / "capture.nsight/perf.data"
    (tmp_path / "vmlinux").write_bytes(vmlinux(place / "kcore_dir", moved))
    out = tmp_path / "e"
    argv = [parity.NATIVE, "edges", place / "data", "--symfs", quiet / "symfs", "-o", out]
    done = run(*argv, "--vmlinux", tmp_path / "vmlinux")
    assert done.returncode == 0, done.stderr
    mine = edges.read(out).edges
    whole = parity.by_native(place, quiet / "symfs", tmp_path).edges
    columns = ["time", "from", "to", "kind"]
    # Modules and BPF programs are not in it.
    same = set(mine[columns].tolist()) & set(whole[columns].tolist())
    assert len(same) > 0.8 * len(whole)
    assert (mine["from_sym"] > 0).sum() > 0.8 * len(mine)
    stripped = bytearray((tmp_path / "vmlinux").read_bytes())
    (tmp_path / "vmlinux").write_bytes(stripped.replace(b"\0_text\0", b"\0_xxxx\0"))
    done = run(*argv, "--vmlinux", tmp_path / "vmlinux")
    assert done.returncode == INPUT and "how far the kernel was moved" in done.stderr
    assert "hint: give the vmlinux with its symbol table" in done.stderr
    without = run(*argv)
    assert "hint: record with --kcore, or give --kcore /proc on the same boot" in without.stderr
