# SPDX-License-Identifier: GPL-2.0-only
"""tests/run and tests/flake: what they count, and what fails a run although no test failed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import socket
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from machinery.harness import areas, gate, notes, retries, surroundings
from machinery.harness.plugin import Progress

ROOT = Path(__file__).resolve().parents[3]


def program(name: str) -> ModuleType:
    """A program of tests/ that has no file name extension, as a module."""
    loader = SourceFileLoader(f"tests_{name}", str(ROOT / "tests" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


run, flake = program("run"), program("flake")
WHOLE = argparse.Namespace(fast=False, only=[], mark="", pytest=[])
ENOUGH = {"shared": 5000, "alone": 500}


def write(directory: Path, kind: str, *rows: dict[str, Any]) -> None:
    (directory / f"{kind}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def test_a_test_is_failed_if_one_of_its_phases_is(tmp_path: Path) -> None:
    phases = [
        ("a", "passed"),
        ("b", "passed"),
        ("b", "failed"),
        ("c", "skipped"),
        ("d", "failed"),
        ("d", "passed"),
    ]
    write(tmp_path, "results", *({"nodeid": n, "when": "call", "outcome": o} for n, o in phases))
    assert run.outcomes(tmp_path) == {"a": "passed", "b": "failed", "c": "skipped", "d": "failed"}


def test_a_whole_run_in_which_all_went_well_has_no_problem(tmp_path: Path) -> None:
    assert run.problems(WHOLE, {"shared": 0, "alone": 0}, ENOUGH, tmp_path) == []


def test_a_part_without_tests_fails_a_whole_run(tmp_path: Path) -> None:
    assert run.problems(WHOLE, {"shared": 0, "alone": 5}, ENOUGH, tmp_path) == [
        "no test was found for: alone"
    ]


def test_of_one_area_one_part_may_be_empty_but_not_both(tmp_path: Path) -> None:
    one = argparse.Namespace(**{**vars(WHOLE), "only": ["calls"]})
    assert run.problems(one, {"shared": 0, "alone": 5}, {"shared": 3, "alone": 0}, tmp_path) == []
    assert run.problems(one, {"shared": 5, "alone": 5}, {"shared": 0, "alone": 0}, tmp_path) == [
        "no test was found for: shared, alone"
    ]


@pytest.mark.parametrize("part", ENOUGH)
def test_too_few_tests_fail_a_whole_run(tmp_path: Path, part: str) -> None:
    least = run.PARTS[part][2]
    few = ENOUGH | {part: least - 1}
    (problem,) = run.problems(WHOLE, {"shared": 0, "alone": 0}, few, tmp_path)
    assert f"part {part!r} ran {least - 1} tests, there are {least} at least" in problem


def test_too_many_retries_fail_and_each_is_told_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"test": "tests/x.py::test_y", "what": "guest", "why": "the emulator died"}
    write(tmp_path, "retries", *[row] * retries.MOST)
    assert run.problems(WHOLE, {"shared": 0, "alone": 0}, ENOUGH, tmp_path) == []
    assert (
        capsys.readouterr().out.splitlines()
        == ["retried: guest in tests/x.py::test_y: the emulator died"] * retries.MOST
    )
    write(tmp_path, "retries", *[row] * (retries.MOST + 1))
    (problem,) = run.problems(WHOLE, {"shared": 0, "alone": 0}, ENOUGH, tmp_path)
    assert problem.startswith(f"{retries.MOST + 1} retries, more than {retries.MOST}")


def test_too_many_wrong_answers_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "SEEN", {"new": gate.Seen(40, 360, 4)})
    answer = {"family": "new", "name": "hog", "figures": "3 ms", "test": ""}
    write(tmp_path, "judged", *[{**answer, "right": True}] * 9)
    assert run.problems(WHOLE, {"shared": 0, "alone": 0}, ENOUGH, tmp_path) == []
    write(tmp_path, "judged", *[{**answer, "right": False}] * 9)
    assert run.problems(WHOLE, {"shared": 0, "alone": 0}, ENOUGH, tmp_path) == [
        "too many answers of 'new' are wrong"
    ]


@pytest.mark.parametrize("parent", ["/", "/" + "p" * 90, "/" + "p" * 200])
def test_no_socket_fits_below_the_directory_of_a_part(parent: str) -> None:
    path = run.long(Path(parent, "shared"))
    assert path.parent == Path(parent)
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(OSError, match="too long"):
        one.bind(str(path / "s"))


def test_notes_of_several_processes_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(notes.DIRECTORY, str(tmp_path))
    code = "from machinery.harness import retries\nfor n in range(200): retries.note('x' * 500, str(n))"
    children = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT / "tests") for _ in range(3)]
    assert [child.wait(120) for child in children] == [0, 0, 0]
    assert sorted(int(r["why"]) for r in retries.all_of()) == sorted([*range(200)] * 3)


def test_surroundings_are_those_of_the_seed_and_nothing_of_the_user_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERF_CONFIG", "/somebody's")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    made = []
    for n, seed in enumerate((1, 1, 2, 3, 4, 5, 6)):
        (tmp_path / str(n)).mkdir()
        env, umask = surroundings.environment(seed, tmp_path / str(n))
        assert Path(env.pop("HOME")).is_dir()
        assert not {"PERF_CONFIG", "LANG"} & set(env)
        made.append((env["TZ"], env["LC_ALL"], env["PYTHONHASHSEED"], umask))
    assert made[0] == made[1]
    for values in zip(*made[1:], strict=True):
        assert len(set(values)) > 1


def test_areas_are_the_directories_with_tests_and_their_targets_exist() -> None:
    assert {"calls", "harness", "truth", "machinery"} <= set(areas.areas())
    assert areas.areas()["calls"] == ROOT / "tests/report/calls"
    assert set(areas.NEEDS) <= set(areas.areas())
    makefile = (ROOT / "Makefile").read_text()
    for target in areas.TARGETS:
        assert f"\n{target}:" in makefile
    assert areas.targets([]) == list(areas.TARGETS)
    assert areas.targets(["clocks"]) == []
    assert areas.targets(["evaluation"]) == areas.targets(["truth"]) == ["decoder"]
    with pytest.raises(ValueError, match=r"'clock' is no area .*hint: one of .*clocks"):
        areas.chosen("calls,clock")


def test_the_line_tells_what_runs_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machinery.harness.plugin._before", lambda: [{"nodeid": "b", "seconds": 100.0}])
    progress = Progress(argparse.Namespace(option=argparse.Namespace(numprocesses=2)))  # type: ignore[arg-type]
    progress._expect(["a", "b", "c"])
    progress._began, progress._running = 1000.0, {"b": 1063.0, "c": 1064.0}
    progress._left.discard("a")
    # b took 100 s the time before; c counts for as much as a did, two cores for 65 s: (100 + 130) / 2 s are left.
    assert progress.line(1065.0) == "[1/3; 1:05, about 1:55 left] b (2 s)"


def test_intervals_are_those_of_clopper_and_pearson() -> None:
    low, high = flake.interval(0, 20)
    assert low == 0
    # None of n: the upper end p has (1 - p)^n = 0.025.
    assert abs((1 - high) ** 20 - 0.025) < 1e-9
    low, high = flake.interval(3, 20)
    assert (round(low, 4), round(high, 4)) == (0.0321, 0.3789)  # as tables have it


def test_the_table_of_rounds_names_what_failed_and_how_often() -> None:
    def one(code: int, outcome: str, right: bool) -> dict[str, Any]:
        return {
            "commit": "abc", "load": "idle", "seed": 5, "code": code, "seconds": 60, "retries": [], "log": "a.log",
            "tests": {"t::a": "passed", "t::b": outcome},
            "judged": [{"family": "truth", "name": "hog", "right": right, "figures": ""}],
        }  # fmt: skip

    text = "\n".join(flake.table([one(1, "failed", False), *[one(0, "passed", True)] * 3]))
    assert "idle: 4 rounds of abc, 60 s each: 1 of 4 (25%; 0.6% to 80.6%) refused, 0 retries" in text
    assert "refused: --seed 5: a.log" in text
    assert "tests that never failed: 1 of 2; of each 0 of 4 (0%; 0.0% to 60.2%)" in text
    assert "1 of 4 (25%; 0.6% to 80.6%) failed  t::b" in text
    assert "1 of 4 (25%; 0.6% to 80.6%) wrong  hog" in text


def test_rounds_of_two_commits_are_not_added_up() -> None:
    plain = {
        "load": "idle",
        "seed": 5,
        "seconds": 60,
        "retries": [],
        "log": "a.log",
        "tests": {},
        "judged": [],
    }
    lines = flake.table([plain | {"commit": "old", "code": 1}, plain | {"commit": "new", "code": 0}])
    assert [line.partition(" (")[0] for line in lines if "rounds of" in line] == [
        "idle: 1 rounds of old, 60 s each: 1 of 1",
        "idle: 1 rounds of new, 60 s each: 0 of 1",
    ]


def test_gate_counts_are_those_of_the_documentation() -> None:
    """The documentation has the rates that the bounds are computed from, and their source."""
    text = (ROOT / "Documentation/testing.md").read_text()
    for family, seen in gate.SEEN.items():
        assert f"| `{family}` | {seen.rounds} | {seen.judged} | {seen.wrong} |" in text
