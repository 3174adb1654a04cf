# SPDX-License-Identifier: GPL-2.0-only
"""Damaged files, read by the programs built with address and undefined-behaviour sanitizers.

Seeded, so that a failure can be repeated; the message contains the seed and the number of the damaged file.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from machinery.harness import built
from nsight_report.capture import native
from nsight_report.capture.perf_data import EVENT, KINDS
from perf_file_bytes import FORMATS, LOOPBACK, data_range, killed

from conftest import skip_or_fail

pytestmark = pytest.mark.tools

SEED = 20261121
N_FILES = 240
NATIVE = Path(native.__file__).parents[2] / "native"
INTERESTING = (0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)

# the programs exit without freeing memory; nothing else may be reported
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}


@pytest.fixture(scope="module")
def checked() -> Path:
    """The directory of the checked programs; they are built if they are out of date."""
    if not shutil.which("make"):
        skip_or_fail("compiler", "make is not installed")
    built.make(NATIVE, "build/asan/nsight-perfdata", "build/asan/nsight-contexts")
    return NATIVE / "build" / "asan"


def run(args: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        args, capture_output=True, text=True, errors="replace", timeout=300, env=ENVIRONMENT
    )
    return done.returncode, done.stderr


def damage(content: bytes, rng: random.Random) -> bytes:
    """The content with one to eight damages: in the header, in the records, or after them."""
    start, end = data_range(content)
    # a short piece of the data keeps the run short and the ends of sections close
    made = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        low, high = rng.choice([(0, 104), (104, start), (start, end), (start, end), (end, len(content))])
        at = rng.randrange(low, max(low + 1, high - 8))
        choice = rng.random()
        if choice < 0.35:
            made[at] ^= 1 << rng.randrange(8)
        elif choice < 0.75:
            width = rng.choice("BHIQ")
            limit = (1 << 8 * struct.calcsize(width)) - 1
            struct.pack_into("<" + width, made, at, rng.choice(INTERESTING) & limit)
        else:
            length = rng.randrange(1, 64)
            made[at : at + length] = rng.randbytes(len(made[at : at + length]))
    if rng.random() < 0.2:
        del made[rng.randrange(len(made)) :]
    return bytes(made)


def test_damaged_files_neither_crash_nor_hang(checked: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    whole = LOOPBACK.read_bytes()
    cut = killed(whole)
    path = tmp_path / "perf.data"
    codes = []
    for number in range(N_FILES):
        path.write_bytes(damage(whole if number % 3 else cut + bytes(16), rng))
        formats = [] if number % 3 else [f"--formats={FORMATS}"]
        code, said = run([str(checked / "nsight-perfdata"), *formats, str(path), str(tmp_path)])
        assert code in (0, 3), f"seed {SEED}, file {number}: exit {code}: {said[:2000]}"
        assert bool(said) == (code == 3), f"seed {SEED}, file {number}: {said[:2000]}"
        codes.append(code)
        if code == 0:
            code, said = run(
                [str(checked / "nsight-contexts"), str(tmp_path / "perf-events.bin"), str(tmp_path)]
            )
            assert (code, said) == (0, ""), f"seed {SEED}, file {number}: {said[:2000]}"
    # the damage must reach the decoder, not only the header check
    assert codes.count(0) > N_FILES / 4
    assert codes.count(3) > N_FILES / 50


def test_random_events_neither_crash_nor_hang(checked: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    path = tmp_path / "events.bin"
    for number in range(60):
        small = rng.choice([4, 1 << 31])
        events = bytearray()
        ts = 0
        for _ in range(rng.randrange(300)):
            ts += rng.randrange(4)
            events += struct.pack(
                "<QHHiiiqqq",
                ts,
                rng.randrange(len(KINDS)),
                rng.choice([0, 1, 2, 300, 0xFFFE, 0xFFFF]),
                rng.randrange(-2, 20),
                rng.randrange(-small, small) if rng.random() < 0.1 else rng.randrange(5),
                0,
                rng.randrange(-small, small),
                rng.randrange(-small, small),
                rng.getrandbits(63) if rng.random() < 0.1 else rng.randrange(6),
            )
        assert len(events) % EVENT.itemsize == 0
        path.write_bytes(events)
        code, said = run([str(checked / "nsight-contexts"), str(path), str(tmp_path)])
        assert (code, said) == (0, ""), f"seed {SEED}, events {number}: {said[:2000]}"


@pytest.mark.parametrize(
    "content", [b"x", bytes(47), struct.pack("<QH", 1, 999) + bytes(38)], ids=["x", "47", "kind"]
)
def test_file_that_is_no_array_of_events_is_refused(checked: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events.bin").write_bytes(content)
    code, said = run([str(checked / "nsight-contexts"), str(tmp_path / "events.bin"), str(tmp_path)])
    assert code == 3
    assert said.startswith("error: ") and "\nhint: " in said
