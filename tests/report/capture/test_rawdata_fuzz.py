# SPDX-License-Identifier: GPL-2.0-only
"""Damaged and made-up records, read by the programs built with address and undefined-behaviour sanitizers.

Seeded, so that a failure can be repeated; the message contains the seed and the number of the file.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from machinery.harness import built
from machinery.made_up import record_files as rf
from nsight_report.capture import native
from nsight_report.capture.perf_data import EVENT, KINDS
from nsight_report.capture.raw_records import STAMP

from conftest import skip_or_fail

pytestmark = pytest.mark.tools

SEED = 20261122
N_DAMAGED = 200
N_MADE_UP = 150
NATIVE = Path(native.__file__).parents[2] / "native"
INTERESTING = (0, 1, 7, 8, 15, 16, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)

# the programs exit without freeing memory; nothing else may be reported
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}


@pytest.fixture(scope="module")
def checked() -> Path:
    """The directory of the checked programs; they are built if they are out of date."""
    if not shutil.which("make"):
        skip_or_fail("compiler", "make is not installed")
    built.make(NATIVE, "build/asan/nsight-rawdata", "build/asan/nsight-contexts")
    return NATIVE / "build" / "asan"


def run(args: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        args, capture_output=True, text=True, errors="replace", timeout=300, env=ENVIRONMENT
    )
    return done.returncode, done.stderr


def sample() -> dict[str, bytes]:
    """Every record type and every kind of block, in files of two cores and of the machine."""
    one = [
        rf.switch(1000, 0, 7), rf.switch_syscall(1200, 7, 8, 1100, 202), rf.waking(1300, 7, 8, 1),
        rf.migrate(1310, 7, 1, 0), rf.others(1450, 53, 17, 9), rf.pair("SOFTIRQ", 1400, 1500, 3), rf.reader(1505, 53, 17, b"named"), rf.pair("IRQ", 1390, 1510, 40),
        rf.pair("VECTOR", 1520, 1530, 2), rf.syscall(1600, 1700, 8, 1, 5, 10), rf.fault(1710, 4096, 4, True),
        rf.task(1720, 9, 9, b"new", rf.NEW, 8), rf.task(1721, 9, 9, b"exec", rf.EXEC), rf.exit_(1800, 9, 9),
        rf.block_io(1810, 1820, 1, 0, 512, 8, 9), rf.drop(1830, 1, 3, 4, 6, 2, 5), rf.pad(3),
        rf.retransmit(1840, 1, 2, 3, 4), rf.switch(1900, 8, 0), rf.pair("IDLE", 1905, 1990, 2),
    ]  # fmt: skip
    two = [rf.message(kind, 2000 + n, tid=7, fd=3) for n, kind in enumerate(rf.KINDS)]
    two += [rf.message("A", 2100, v6=(1, 2, 3, 4), hw=9), rf.syscall(1100, 2200, 7, 202)]
    first, second = b"".join(one), b"".join(two)
    tally = {rf.TYPE["SWITCH"]: (5, 2), rf.message_type("A"): (3, 1)}
    packed = rf.block(second, 2000, 60, flags=rf.ZSTD, stored=pa.compress(second, "zstd", asbytes=True))
    return {
        "cpu-0.records": rf.header(0) + rf.block(first, 2000) + packed + rf.counts(2000, tally),
        "cpu-1.records": rf.header(1) + rf.block(second, 2000) + rf.block(first, 2000, 200),
        "machine.records": rf.header(rf.NO_CPU) + rf.block(rf.task(1, 7, 6, b"x") + rf.steal(9, 1, 0), 9),
        "irqs.tsv": b"40\teth0\n41\teth1\n",
    }


def damage(content: bytes, rng: random.Random) -> bytes:
    """The content with one to eight damages; headers of the file and of blocks are hit as often as records."""
    made = bytearray(content)
    heads = [0] + [at for at in range(len(content)) if content.startswith(b"NSBK", at)]
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(made))
        if rng.random() < 0.5:
            at = min(len(made) - 1, rng.choice(heads) + rng.randrange(32))
        choice = rng.random()
        if choice < 0.35:
            made[at] ^= 1 << rng.randrange(8)
        elif choice < 0.75:
            width = rng.choice("BHIQ")
            size = struct.calcsize(width)
            word = struct.pack("<" + width, rng.choice(INTERESTING) & ((1 << 8 * size) - 1))
            made[at : at + size] = word[: len(made) - at]
        else:
            length = rng.randrange(1, 64)
            made[at : at + length] = rng.randbytes(len(made[at : at + length]))
    if rng.random() < 0.2:
        del made[rng.randrange(len(made)) :]
    return bytes(made)


def check(checked: Path, records: Path, out: Path, name: str) -> int:
    """Decode and nest; the output must be what the other programs rely on. Returns the exit code."""
    code, said = run([str(checked / "nsight-rawdata"), str(records), str(out)])
    assert code in (0, 3), f"{name}: exit {code}: {said[:2000]}"
    assert bool(said) == (code == 3), f"{name}: {said[:2000]}"
    if code:
        return code
    info = json.loads((out / "perf-events.json").read_text())
    events, stamps = np.fromfile(out / "perf-events.bin", EVENT), np.fromfile(out / "messages.bin", STAMP)
    assert (len(events), len(stamps)) == (info["n_events"], info["n_messages"]), name
    assert (np.diff(events["ts"].astype(np.int64)) >= 0).all(), name
    assert (events["kind"] < len(KINDS)).all(), name
    assert (stamps["kind"] < len(rf.KINDS)).all() and (stamps["comm"] < len(info["strings"])).all(), name
    code, said = run([str(checked / "nsight-contexts"), str(out / "perf-events.bin"), str(out)])
    assert (code, said) == (0, ""), f"{name}: {said[:2000]}"
    return 0


def test_damaged_files_neither_crash_nor_hang(checked: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    records = tmp_path / "records"
    records.mkdir()
    whole = sample()
    codes = []
    for number in range(N_DAMAGED):
        hit = rng.choice(sorted(whole)[:3])
        for name, content in whole.items():
            hurt = name == hit or rng.random() < 0.2
            (records / name).write_bytes(damage(content, rng) if hurt else content)
        codes.append(check(checked, records, tmp_path, f"seed {SEED}, file {number}"))
    # the damage must reach the records, not only the headers; a future version number ends the reading
    assert codes.count(0) > N_DAMAGED * 3 / 4


def test_made_up_records_neither_crash_nor_hang(checked: Path, tmp_path: Path) -> None:
    """Complete records of every type with random contents, many with equal times, on two cores."""
    rng = random.Random(SEED)
    types = list(range(2, len(rf.TYPES))) + list(range(0x80, 0x80 + 28)) + list(range(0xA0, 0xA0 + 28))
    for number in range(N_MADE_UP):
        files = {}
        coarse = rng.choice([1, 100, 1 << 41])
        for cpu in (0, 1):
            blocks = [rf.header(cpu)]
            at = 0
            for _ in range(rng.randrange(1, 4)):
                content = b""
                for _ in range(rng.randrange(120)):
                    type_ = rng.choice([2, 3, 9, 5, rng.choice(types)])
                    words = [rng.getrandbits(64) if rng.random() < 0.2 else tids(rng) for _ in range(13)]
                    record = rf.record(type_, (1 << 42) + rng.randrange(4) * coarse, *words)
                    content += record[: 16 * units(type_)]
                blocks.append(rf.block(content, 1 << 42, at))
                at += len(content) // 16 + rng.choice([0, 0, 50])
            files[f"cpu{cpu}"] = b"".join(blocks)
        records = rf.write(tmp_path, **files)
        assert check(checked, records, tmp_path, f"seed {SEED}, records {number}") == 0


def tids(rng: random.Random) -> int:
    """A word that is two small numbers of threads, a short time, or both."""
    return rng.randrange(4) | rng.randrange(4) << rng.choice([22, 32, 40]) | rng.randrange(3) << 44


def units(type_: int) -> int:
    if type_ >= rf.MESSAGE:
        return rf.units_of_message(type_)
    return {"TASK": 3}.get(rf.TYPES[type_]) or 1 + (rf.TYPES[type_] in rf.TWO_UNITS)
