# SPDX-License-Identifier: GPL-2.0-only
"""Stored tables are used only if this user made them and nobody changed them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nsight_report import losses
from nsight_report.tables import seal
from nsight_report.tables.store import Store

from conftest import ROOT

Stages = dict[str, Any]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory for this test only."""
    directory = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(directory))
    seal._key.cache_clear()
    yield directory / "nsight"
    seal._key.cache_clear()


def ledger(text: str) -> pa.Table:
    made = losses.Ledger("clocks")
    made.told(losses.Loss("some", "info", text, "none", "none"), 1)
    return made.table()


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    directory = tmp_path / "tables"
    store = Store(directory)
    store.save("clocks", {"losses-clocks": ledger("one")}, {"files": [1]})
    store.save("messages", {"losses-messages": ledger("two")}, {"files": [2]})
    return directory


def believed(tables: Path) -> dict[str, bool]:
    """By stage: whether its entry and its table are used."""
    store = Store(tables)
    return {
        s: bool(store.entry(s)) and store.load(f"losses-{s}", "losses") is not None
        for s in ("clocks", "messages")
    }


def test_own_tables_are_believed_by_the_next_process(tables: Path) -> None:
    seal._key.cache_clear()
    assert believed(tables) == {"clocks": True, "messages": True}
    assert Store(tables).holds("losses-clocks", "losses")


def test_tables_made_with_another_key_are_not(tables: Path, state: Path) -> None:
    (state / f"tables-{os.geteuid()}.key").unlink()
    seal._key.cache_clear()
    assert believed(tables) == {"clocks": False, "messages": False}


def edit(change: Callable[[Stages], Any]) -> Callable[[Path], Any]:
    def edited(tables: Path) -> None:
        path = tables / "stages.json"
        stages = json.loads(path.read_text())
        change(stages)
        path.write_text(json.dumps(stages))

    return edited


FORGED: dict[str, Callable[[Path], Any]] = {
    "an entry without mark": edit(lambda s: s["clocks"].pop("mark")),
    "a mark that is no text": edit(lambda s: s["clocks"].update(mark=["x"])),
    "a mark that is no ASCII": edit(lambda s: s["clocks"].update(mark="\ud800")),
    "another entry's mark": edit(lambda s: s["clocks"].update(mark=s["messages"]["mark"])),
    "an entry of another stage": edit(lambda s: s.update(clocks=s["messages"])),
    "an entry that names its stage": edit(lambda s: s.update(clocks={**s["messages"], "stage": "messages"})),
    "made from other files": edit(lambda s: s["clocks"]["made_from"].update(files=[9])),
    "other content by its entry": edit(lambda s: s["clocks"].update(tables=s["messages"]["tables"])),
    "a word more": edit(lambda s: s["clocks"].update(more=1)),
    "a table of another stage": lambda t: os.replace(
        t / "losses-messages.parquet", t / "losses-clocks.parquet"
    ),
    "a table of its own size": lambda t: (t / "losses-clocks.parquet").write_bytes(
        bytes((t / "losses-clocks.parquet").stat().st_size)
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_what_was_changed_is_not(tables: Path, how: str) -> None:
    FORGED[how](tables)
    assert not believed(tables)["clocks"]
    if "table of another" not in how:
        assert believed(tables)["messages"]


def test_a_table_that_is_changed_while_the_store_is_open_is_seen(tables: Path) -> None:
    store = Store(tables)
    assert store.holds("losses-clocks", "losses")
    path = tables / "losses-clocks.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    assert not store.holds("losses-clocks", "losses")


def test_a_table_that_another_run_made_anew_is_read(tables: Path) -> None:
    store = Store(tables)
    Store(tables).save("clocks", {"losses-clocks": ledger("three")}, {"files": [1]})
    table = store.load("losses-clocks", "losses")
    assert table is not None
    assert table["cause"].to_pylist() == ["three"]


def test_the_key_is_private_and_stays(tables: Path, state: Path) -> None:
    (path,) = state.iterdir()
    assert (path.stat().st_mode & 0o777, path.stat().st_size) == (0o600, 32)
    key = path.read_bytes()
    assert key != bytes(32)
    assert seal.mark({}) == seal.mark({})
    assert path.read_bytes() == key


@pytest.mark.parametrize("how", ["readable by others", "short", "a link", "a pipe"])
def test_a_key_that_others_may_know_is_not_used(tables: Path, state: Path, how: str) -> None:
    (path,) = state.iterdir()
    if how == "readable by others":
        path.chmod(0o644)
    elif how == "short":
        path.write_bytes(b"")
    else:
        path.rename(state / "other")
        path.symlink_to(state / "other") if how == "a link" else os.mkfifo(path)
    seal._key.cache_clear()
    assert believed(tables) == {"clocks": False, "messages": False}


def test_of_processes_that_begin_at_once_all_have_one_key(state: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from nsight_report.tables import seal; print(seal.mark({}))"
    argv = [sys.executable, "-c", code, str(ROOT / "tools/nsight-report")]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    marks = {process.communicate(timeout=120)[0] for process in running}
    assert len(marks) == 1
    assert [p.name for p in state.iterdir()] == [f"tables-{os.geteuid()}.key"]


def test_without_a_place_for_the_key_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    seal._key.cache_clear()
    store = Store(tmp_path / "t")
    store.save("clocks", {"losses-clocks": ledger("one")}, {})
    assert Store(tmp_path / "t").holds("losses-clocks", "losses")
    seal._key.cache_clear()
    assert not Store(tmp_path / "t").holds("losses-clocks", "losses")
