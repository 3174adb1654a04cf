# SPDX-License-Identifier: GPL-2.0-only
"""Emulated Intel PT: its parts, a capture made from nothing, and the committed ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from decode import parity, per_thread

from conftest import skip_or_fail
from machinery.pt_emulation.fixtures import trim, unpack
from machinery.pt_emulation.scenarios import truth
from machinery.pt_emulation.scenarios.table import SCENARIOS

pytestmark = pytest.mark.tools

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[2]
BIN = TOP / "build" / "cargo" / "release"
PROGRAMS = TOP / "build" / "pt_emulation"


def built() -> None:
    """Skip unless the workspace and the guest's programs are built."""
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    for path in (BIN / "pt-gate", BIN / "libpt_observer.so", PROGRAMS / "pt-libipt"):
        if not path.exists():
            skip_or_fail("emulation", f"{path.name} is not built (hint: make emulation)")


def test_workspace() -> None:
    """Transitions, times, packets (also as libipt and perf read them), comparison: Rust's own tests."""
    built()
    if not shutil.which("cargo"):
        skip_or_fail("emulation", "cargo is not installed")
    done = subprocess.run(
        ["cargo", "test", "-q", "--release", "--locked"], cwd=HERE, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    # every crate's tests ran, and none of them was empty
    assert (
        sum(int(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("test result")) > 50
    )


# -- truth ----------------------------------------------------------------------------------


def marks(*rows: tuple[int, int, int]) -> str:
    """Lines of pt-walk marks: (tsc, kind, first)."""
    return "".join(f"0\t{tsc}\tmark\t{kind}\t{first:#x}\t0x0\n" for tsc, kind, first in rows)


def test_a_flight_is_from_the_last_sending_to_the_answer() -> None:
    port = 20000 << 32
    text = marks((10, 16, port | 1), (12, 16, port | 1), (30, 17, port | 1), (40, 16, port | 2))
    found = truth.parse_marks(text)
    assert found.flights == {(20000, 1): (12, 30)}  # request 2 was not answered
    assert (found.first, found.last) == (10, 40)


def test_a_disturbance_that_had_not_ended_lasts_to_the_end() -> None:
    text = marks((10, 18, 7), (20, 19, 7), (30, 18, 7), (50, 17, 0))
    assert truth.parse_marks(text).disturbances == {7: [(10, 20), (30, 50)]}


def test_no_ns_counts_twice() -> None:
    start, end = np.array([0, 100]), np.array([50, 200])
    # 10-30 and 20-40 together are 30 ns of the first request; the second has none of them
    assert truth.share_ns(start, end, truth.merged([(10, 30), (20, 40)])).tolist() == [30, 0]


def test_one_message_hit_by_something_else_does_not_hide_the_cause() -> None:
    # 50 of 50, 50 of 40 and 50 of 4000 ns: of their sums the cause would be 4 %
    assert truth._typical_share(np.array([50, 50, 50]), np.array([50, 40, 4000])) == 1.0
    assert truth._typical_share(np.array([], np.int64), np.array([], np.int64)) == 0.0


def test_a_wake_up_lasts_from_the_first_interrupt_until_the_core_runs() -> None:
    kick, kicked = truth.KICKS[0], truth.KICKED[0]
    entries = [(5, 1, kick), (9, 1, kick), (90, 0, kicked), (95, 0, kick), (99, 1, kicked), (120, 1, kick)]
    entries += [(125, 0, kicked)]
    # the other direction is no wake-up of core 0, and the last one was quick
    assert truth.wake_ups(entries, 0, 50) == [(5, 90)]
    assert truth.wake_ups(entries, 0, 5) == [(5, 90), (120, 125)]


def test_every_scenario_says_what_a_diagnosis_should_find() -> None:
    for name, scenario in SCENARIOS.items():
        assert name == scenario.name
        assert (scenario.cause is not None) or scenario.expect, name
        if scenario.cause:
            assert scenario.cause.names, name
            assert (scenario.cause.evidence == "marks") == (scenario.cause.mark is not None), name
            assert (scenario.cause.evidence == "functions") == bool(scenario.cause.symbols), name


# -- perf without Intel PT ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["record", "-e", "intel_pt/cyc=1/", "-o", "x"], "record -e dummy:u -e dummy:k -o x"),
        (["record", "-m", "512,4096", "-e", "sched:sched_switch"], "record -m 512 -e sched:sched_switch"),
        (
            ["record", "-e", "intel_pt//", "--", "sh", "-c", "a b"],
            "record -e dummy:u -e dummy:k -- sh -c a b",
        ),
        (["script", "-i", "x"], "script -i x"),
    ],
)
def test_the_shim_replaces_intel_pt_alone(given: list[str], passed: str) -> None:
    shim = HERE / "guest" / "shim" / "perf"
    done = subprocess.run(
        [shim, *given], env={"PT_REAL_PERF": "echo", "PATH": "/bin:/usr/bin"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == passed


# -- committed captures ---------------------------------------------------------------------


@pytest.fixture(scope="module", params=unpack.names())
def fixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of an unpacked capture."""
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    return unpack.unpack(request.param, tmp_path_factory.mktemp("fixture"))


def test_stock_perf_decodes_it_as_when_it_was_made(fixture: Path) -> None:
    expected = json.loads((fixture / "fixture.json").read_text())
    n, digest, errors = trim.branches(fixture / "capture.nsight" / "perf.data", fixture / "symfs")
    assert (n, digest, errors) == (expected["branches"], expected["branches_sha256"], expected["errors"])


@pytest.mark.trixie
def test_perf_of_the_next_debian_decodes_the_same() -> None:
    trixie = TOP / "tests/machinery/guest/trixie"
    if subprocess.run([trixie, "--prepare"], capture_output=True).returncode:
        skip_or_fail("trixie", "build/trixie, which has perf 6.12, cannot be made")
    (TOP / "build" / "tmp").mkdir(exist_ok=True)  # it sees the checkout alone
    with tempfile.TemporaryDirectory(prefix="fixtures-", dir=TOP / "build" / "tmp") as place:
        for name in unpack.names():
            directory = unpack.unpack(name, Path(place))
            expected = json.loads((directory / "fixture.json").read_text())
            data, symfs = directory / "capture.nsight" / "perf.data", directory / "symfs"
            found = (name, *trim.branches(data, symfs, (str(trixie), "perf")))
            assert found == (name, expected["branches"], expected["branches_sha256"], expected["errors"])


def test_it_is_a_whole_capture(fixture: Path) -> None:
    capture = fixture / "capture.nsight"
    for name in ("manifest.json", "events.tsv", "clock.tsv", "truth.json", "perf.data/data"):
        assert (capture / name).stat().st_size > 0, name
    known = json.loads((capture / "truth.json").read_text())
    if SCENARIOS[known["scenario"]].cause:
        delayed = [r for r in known["requests"] if r["cause_ns"]]
        assert 0 < len(delayed) == known["causes"][0]["n_messages"]
    assert len([r for r in known["requests"] if not r["cause_ns"]]) >= 3


# -- from nothing ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a capture made now: boot, record, encode, merge, judge."""
    built()
    if subprocess.run([TOP / "tests/machinery/guest/trixie", "--prepare"], capture_output=True).returncode:
        skip_or_fail("trixie", "build/trixie, which has QEMU 10, cannot be made")
    directory = tmp_path_factory.mktemp("captures")
    argv = [sys.executable, HERE / "make-capture", "slow-function", "--out", directory]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return directory / "slow-function"


def least_edges(options: list[str]) -> int:
    """The least number of edges that must be compared. Most of the load is in the kernel: 7,000 of 160,000 edges are in user mode."""
    return 1_000 if "--user-only" in options else 50_000


def gate(made: Path, aux: Path, perf_data: Path) -> subprocess.CompletedProcess[str]:
    """Judge packets and perf.data against the log."""
    argv = [BIN / "pt-gate", "--log", made / "observer.log", "--aux", aux, "--perf-data", perf_data]
    argv += ["--symfs", made / "symfs", "--libipt", PROGRAMS / "pt-libipt"]
    return subprocess.run([str(x) for x in argv], capture_output=True, text=True)


@pytest.mark.guest
@pytest.mark.slow
class TestFromNothing:
    """One capture, made here and now."""

    def test_its_gate_passed_and_its_cause_is_in_the_truth(self, made: Path) -> None:
        verdict = json.loads((made / "gate.json").read_text())
        assert verdict["passed"]
        assert verdict["perf"]["errors"] == 0
        assert sum(c["compared"] for c in verdict["perf"]["branches"]) > 100_000
        known = json.loads((made / "capture.nsight" / "truth.json").read_text())
        (cause,) = known["causes"]
        # Every tenth request is slow, and so are the requests that wait behind it on the other connection:
        # one, or two if it ends between them.
        tenth = len(known["requests"]) // 10
        assert tenth <= cause["n_messages"] <= 3 * tenth
        # the marked time is most of the extra time of the delayed messages
        assert 0.5 < cause["share_of_excess"] < 1.3

    def test_a_damaged_packet_fails_the_gate(self, made: Path, tmp_path: Path) -> None:
        aux = tmp_path / "aux"
        shutil.copytree(made / "aux", aux)
        packets = bytearray((aux / "cpu0.aux").read_bytes())
        # a TNT packet in the middle: invert one branch
        at = next(
            i
            for i in range(len(packets) // 2, len(packets))
            if packets[i] & 1 == 0
            and packets[i] > 0x80
            and packets[i - 1] & 3 == 3
            and packets[i - 2] & 1 == 0
        )
        packets[at] ^= 0x04
        (aux / "cpu0.aux").write_bytes(packets)
        data = tmp_path / "perf.data"
        merge = [BIN / "pt-merge", "--side-band", made / "guest/capture.nsight/perf.data", "--aux", aux]
        merge += ["--vdso", made / "guest/vdso.so", "--vdso-name", "/vdso.so", "--out", data]
        subprocess.run([str(x) for x in merge], check=True)
        judged = gate(made, aux, data)
        assert judged.returncode == 1, judged.stdout + judged.stderr
        assert "perf branches  FAILED" in judged.stdout
        assert "libipt         FAILED" in judged.stdout

    @pytest.mark.parametrize(
        "options",
        [
            ["--retcomp"],
            ["--no-cyc", "--mtc"],
            ["--mtc", "--cyc-thresh", "4", "--tnt-bits", "47"],
            ["--user-only"],
            ["--snapshot", "100000"],
            ["--pwr-evt"],
            ["--psb-bytes", "512"],
        ],
        ids=" ".join,
    )
    def test_other_options_pass_the_gate_too(self, made: Path, tmp_path: Path, options: list[str]) -> None:
        aux, data = tmp_path / "aux", tmp_path / "perf.data"
        subprocess.run([BIN / "pt-encode", made / "observer.log", "--out", aux, *options], check=True)
        merge = [BIN / "pt-merge", "--side-band", made / "guest/capture.nsight/perf.data", "--aux", aux]
        merge += ["--vdso", made / "guest/vdso.so", "--vdso-name", "/vdso.so", "--out", data]
        subprocess.run([str(x) for x in merge], check=True)
        judged = gate(made, aux, data)
        assert judged.returncode == 0, judged.stdout + judged.stderr

    @pytest.mark.parametrize(
        "options",
        [
            ["--retcomp"],
            ["--no-cyc"],
            ["--no-cyc", "--mtc"],
            ["--mtc", "--cyc-thresh", "6", "--retcomp"],
            ["--user-only", "--retcomp"],
        ],
        ids=" ".join,
    )
    def test_nsight_decode_tells_what_the_log_or_perf_tells(
        self, made: Path, tmp_path: Path, options: list[str]
    ) -> None:
        aux, data = tmp_path / "aux", tmp_path / "perf.data"
        subprocess.run([BIN / "pt-encode", made / "observer.log", "--out", aux, *options], check=True)
        merge = [BIN / "pt-merge", "--side-band", made / "guest/capture.nsight/perf.data", "--aux", aux]
        merge += ["--vdso", made / "guest/vdso.so", "--vdso-name", "/vdso.so", "--out", data]
        subprocess.run([str(x) for x in merge], check=True)
        native = parity.by_native(data, made / "symfs", tmp_path)
        if "--user-only" not in options:
            n, differs = parity.against_log(native, made / "observer.log")
            assert (differs, n > 100_000) == ("", True)
        if options != ["--no-cyc"]:  # perf guesses times between PSBs, and takes the wrong code
            rows = parity.stacked(parity.by_perf(data, made / "symfs", tmp_path, "nsight.py"))
            n, differs = parity.same_rows(rows, parity.stacked(native), ("from", "to", "kind", "tid"))
            assert (differs, n > least_edges(options)) == ("", True)

    @pytest.mark.parametrize("options", [[], ["--retcomp"], ["--no-cyc"], ["--user-only"]], ids=" ".join)
    def test_buffers_of_threads_are_decoded_as_perf_does(
        self, made: Path, tmp_path: Path, options: list[str]
    ) -> None:
        data = tmp_path / "perf.data"
        tids = per_thread.make(made, data, [], options)
        # The server and its client. Other threads that ran while the trace was on depend on the guest: one or two more.
        assert 2 <= len(tids) <= 4
        native = parity.by_native(data, made / "symfs", tmp_path)
        assert set(native.edges["tid"].tolist()) == set(tids)
        assert set(native.edges["cpu"].tolist()) == {-1}
        for tool in ("nsight.py", "nsight-edges"):
            rows = parity.stacked(parity.by_perf(data, made / "symfs", tmp_path, tool))
            n, differs = parity.same_rows(rows, parity.stacked(native), ("from", "to", "kind", "tid"))
            assert (differs, n > least_edges(options)) == ("", True)
