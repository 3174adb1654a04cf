# SPDX-License-Identifier: GPL-2.0-only
"""Marks in C, C++ and Python programs, and the queue between two threads: its statistics agree with the intervals that it writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import nsight_report
import numpy as np
import pytest
from recorder_run import END_S, RECORDER, require_live

from conftest import ROOT, skip_or_fail

TOOLS = ROOT / "tools/nsight-interval"

pytestmark = pytest.mark.tools


@pytest.fixture(autouse=True)
def compiler() -> None:
    if not shutil.which("g++"):
        skip_or_fail("compiler", "g++ is not installed")


def notes(program: Path) -> list[tuple[str, str]]:
    """Name and semaphore of every mark, as readelf prints them."""
    told = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Provider: nsight\s+Name: (\w+)\s+Location: \w+, Base: \w+, Semaphore: (\w+)", told)
    return sorted(found)


@pytest.mark.parametrize(
    ("compile_", "ending"),
    [(["gcc", "-std=c11"], "c"), (["g++", "-std=c++17", "-Wno-variadic-macros"], "cc")],
)
def test_marks_of_one_name_share_a_semaphore_within_a_file_and_between_files(
    tmp_path: Path, compile_: list[str], ending: str
) -> None:
    first = "#include <nsight/interval.h>\nvoid other(void);\nint main(void) { NSIGHT_BEGIN(a); NSIGHT_BEGIN(a); other(); NSIGHT_END(a); return 0; }\n"
    other = "#include <nsight/interval.h>\nvoid other(void);\nvoid other(void) { NSIGHT_END(a); NSIGHT_MARK(b); }\n"
    (tmp_path / f"first.{ending}").write_text(first)
    (tmp_path / f"other.{ending}").write_text(other)
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-I", TOOLS, tmp_path / f"first.{ending}", tmp_path / f"other.{ending}"]  # fmt: skip
    subprocess.run([*compile_, *options, "-o", tmp_path / "x"], check=True)
    found = notes(tmp_path / "x")
    assert [name for name, _ in found] == ["a_begin", "a_begin", "a_end", "a_end", "b"]
    semaphores = [semaphore for _, semaphore in found]
    assert semaphores[0] == semaphores[1]
    assert semaphores[2] == semaphores[3]
    assert len({*semaphores}) == 3
    subprocess.run([tmp_path / "x"], check=True)
    subprocess.run([*compile_, "-DNSIGHT_NO_MARKS", *options, "-o", tmp_path / "none"], check=True)
    assert notes(tmp_path / "none") == []


def test_the_queues_statistics_are_those_of_the_intervals_that_it_writes(tmp_path: Path) -> None:
    program, file = tmp_path / "spsc", tmp_path / "i.csv"
    subprocess.run(
        ["gcc", "-O2", "-D_GNU_SOURCE", TOOLS / "spsc/spsc.c", "-o", program, "-lm", "-pthread"], check=True
    )
    done = subprocess.run(
        [program, "-i", file, "5000", "8", "100000"], capture_output=True, text=True, check=True
    )
    said = [float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", done.stdout)]
    thread, header, *lines = file.read_text().splitlines()
    assert re.fullmatch(r"# thread \d+", thread)
    assert header == "name,start,stop"
    stamps = np.array([line.split(",")[1:] for line in lines], np.int64)
    assert len(stamps) == 5000
    assert (np.diff(stamps[:, 0]) >= 0).all()  # packets come out in the order in which they went in
    ns = np.sort(stamps[:, 1] - stamps[:, 0])
    limit = ns[3750] + 3 * (ns[3750] - ns[1250])  # in whole ns, so several intervals can be exactly this long
    us, usual = ns / 1000, ns[ns <= limit] / 1000
    expected = [us.mean(), usual.mean(), us[0], us[-1], 5000 - len(usual), limit / 1000, us.std(ddof=1)]
    assert said == pytest.approx([*expected, usual.std(ddof=1)], abs=0.0006)


_BESIDE_ANOTHER_THREAD = """
import sys, threading, time
import nsight_interval

sys.setswitchinterval(1000)  # the interpreter changes threads only where one lets it go
order = nsight_interval.Interval("order")
order._listeners.value = 1
n = 0

def other():
    global n
    while True:
        n += 1
        time.sleep(0)

threading.Thread(target=other, daemon=True).start()
while not n:
    time.sleep(0.01)
switched = 0
for _ in range(20_000):
    before = n
    with order:
        pass
    switched += n != before
print(switched)
"""


def test_a_mark_in_python_lets_no_other_thread_run(tmp_path: Path) -> None:
    """Some 350 of them did, and their wait for the interpreter was then part of the interval."""
    shutil.copy(TOOLS / "python/nsight_interval.py", tmp_path)
    library = ["gcc", "-O2", "-fPIC", "-shared", TOOLS / "python/slots.c", "-o", tmp_path / "slots.so"]
    subprocess.run(library, check=True)
    argv = ["python3", "-c", _BESIDE_ANOTHER_THREAD]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.live
def test_a_python_programs_intervals_are_recorded_by_their_name(tmp_path: Path) -> None:
    require_live()
    shutil.copy(TOOLS / "python/nsight_interval.py", tmp_path)
    library = ["gcc", "-O2", "-fPIC", "-shared", TOOLS / "python/slots.c", "-o", tmp_path / "slots.so"]
    subprocess.run(library, check=True)
    body = "import nsight_interval as n\na = n.Interval('order')\nb = n.Interval('never')\n"
    where = subprocess.run(
        ["python3", "-c", body + "print(a.where)"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert where == f"order=usdt:{tmp_path}/slots.so:nsight:slot0_begin..slot0_end"
    loop = body + "for i in range(50):\n    with a:\n        with b:\n            pass\n"
    done = subprocess.run(
        [RECORDER, "--recorder", "bpf", "--mode", "tracepoints", "-o", tmp_path / "x.nsight", "--interval", where, "--",
         "python3", "-c", loop],
        cwd=tmp_path, capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = nsight_report.open(tmp_path / "x.nsight", direction="interval").messages
    rows = rows[rows["direction"].astype(str) == "interval"]  # other programs have messages here, too
    assert rows["request_type"].astype(str).tolist() == ["order"] * 50
