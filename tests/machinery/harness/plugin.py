# SPDX-License-Identifier: GPL-2.0-only
"""pytest plugin of every run: skips only for listed reasons, one progress line, results, readable failures."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from . import capabilities, notes

ROOT = Path(__file__).resolve().parents[3]
#: Tests with one of these marks do not run with --fast.
NOT_FAST = ("live", "alone", "guest", "trixie", "tools", "slow")
#: Interval at which the line is printed again if there is no terminal.
EVERY_S = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """--fast."""
    parser.addoption("--fast", action="store_true", help="no test that is live, boots a guest, or is slow")


def pytest_configure(config: pytest.Config) -> None:
    """Check NSIGHT_REQUIRE before anything runs; the run's controller process prints the line and writes the results."""
    try:
        capabilities.required()
    except capabilities.Unknown as error:
        raise pytest.UsageError(f"{capabilities.REQUIRE}: {error}") from None
    if not hasattr(config, "workerinput") and notes.DIRECTORY in os.environ:
        config.pluginmanager.register(Progress(config))


#: Their files have to wait for each other (see their conftest): one process runs them, so that no other waits.
ONE_BY_ONE = "tests/capsule/"


class Files(LoadFileScheduling):
    """A process gets whole files."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_BY_ONE if nodeid.startswith(ONE_BY_ONE) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Files | None:
    """Of ``--dist loadfile``."""
    return Files(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no core idles at the end; the others keep their random order."""
    if config.getoption("--fast"):
        fast = [i for i in items if not any(i.get_closest_marker(m) for m in NOT_FAST)]
        config.hook.pytest_deselected(items=[i for i in items if i not in set(fast)])
        items[:] = fast
    slow = {i.path for i in items if i.get_closest_marker("slow") or i.nodeid.startswith(ONE_BY_ONE)}
    items.sort(key=lambda i: i.path not in slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Refuse skips that are not allowed, and add what a reader of a failure needs."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and (why := _forbidden(report)):
        report.outcome, report.longrepr = "failed", why
    if report.failed:
        report.sections.insert(0, ("claim", claim(item)))
        report.sections.append(("to repeat it alone", repeat(item)))
    return report


def _forbidden(report: pytest.TestReport) -> str:
    """Why this test must not be skipped; "" if it may be skipped."""
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    name = capabilities.of_reason(reason)
    if name is None:
        return f"skipped for a reason that is not in tests/machinery/harness/capabilities.py: {reason}"
    if name in capabilities.required():
        return f"{capabilities.REQUIRE} names {name}, which is missing: {reason}"
    return ""


def claim(item: pytest.Item) -> str:
    """What the test claims: its name as a sentence, and its docstring."""
    name = item.name.partition("[")[0].removeprefix("test_").replace("_", " ")
    text = inspect.getdoc(getattr(item, "function", None)) or ""
    case = f" [{item.name.partition('[')[2]}" if "[" in item.name else ""
    return f"{name}{case}" + (f"\n{text}" if text else "")


def repeat(item: pytest.Item) -> str:
    """The command that runs only this test, with the same order and the same random numbers."""
    words = [".venv/bin/python", "-m", "pytest", item.nodeid]
    for option in ("randomly", "hypothesis"):
        if (seed := item.config.getoption(f"{option}_seed", None)) is not None:
            words.append(f"--{option}-seed={seed}")
    return shlex.join(words)


class Progress:
    """One progress line: what runs, for how long, what is left. Results go to the run's directory, one line per test."""

    def __init__(self, config: pytest.Config) -> None:
        self._tty = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()
        self._usual = {r["nodeid"]: r["seconds"] for r in _before()}
        self._left: set[str] = set()
        self._running: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._n_all = self._n_failed = 0
        self._workers = max(int(getattr(config.option, "numprocesses", None) or 1), 1)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learn what is left, if this process collects the tests."""
        self._expect([i.nodeid for i in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Learn what is left, if workers collect the tests."""
        self._expect(ids)

    def _expect(self, ids: list[str]) -> None:
        if ids and not self._n_all:
            self._left, self._n_all = set(ids), len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test starts."""
        self._running[nodeid] = time.monotonic()
        self._draw()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test ended; after its last phase the test is counted."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._clear()
            self._n_failed += 1
            print(f"FAILED {report.nodeid} ({report.when})", file=sys.stderr, flush=True)
        if report.when == "call" or report.failed or report.skipped:
            notes.write("results", nodeid=report.nodeid, when=report.when, outcome=report.outcome)
        if report.when in ("teardown", "???"):  # xdist: the process has ended
            notes.write("times", nodeid=report.nodeid, seconds=round(self._seconds.pop(report.nodeid), 3))
            self._running.pop(report.nodeid, None)
            self._left.discard(report.nodeid)
            self._draw()

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """No dot for a passed test: the progress line shows more."""
        if self._n_all and report.passed:
            return ("passed" if report.when == "call" else "", "", "")
        return None

    def pytest_sessionfinish(self) -> None:
        """Remove the progress line."""
        self._clear()

    def _draw(self) -> None:
        now = time.monotonic()
        if not self._n_all or (not self._tty and now - self._shown < EVERY_S):
            return
        self._shown = now
        text = self.line(now)
        if self._tty:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            sys.stderr.write(f"\r\033[K{text[: width - 1]}")
            sys.stderr.flush()
        else:
            print(text, file=sys.stderr, flush=True)

    def line(self, now: float) -> str:
        """``[done/all, failed; minutes so far, minutes left (estimate)] the test that has run longest (seconds)``."""
        done = self._n_all - len(self._left)
        # Without an earlier run, the estimate for each test is the mean of the finished tests.
        mean = (now - self._began) * self._workers / max(done, 1)
        left = sum(self._usual.get(n, mean) for n in self._left) / self._workers
        failed = f", {self._n_failed} failed" if self._n_failed else ""
        text = f"[{done}/{self._n_all}{failed}; {_clock(now - self._began)}, about {_clock(left)} left]"
        if self._running:
            nodeid, since = min(self._running.items(), key=lambda kv: kv[1])
            text += f" {nodeid} ({now - since:.0f} s)"
        return text

    def _clear(self) -> None:
        if self._tty:
            sys.stderr.write("\r\033[K")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _before() -> list[dict[str, Any]]:
    """How long each test took in the previous run, if there was one."""
    return notes.read("times", ROOT / "build" / "test" / "times")
