# SPDX-License-Identifier: GPL-2.0-only
"""Shared by the targets: code that is watched, a directory in memory, and the definition of a finding.

A reader may succeed, or refuse with its own error (a message and a fix). Anything else is a finding: another
exception, a numpy warning (unintended arithmetic), a child program that crashes or hangs, memory.
"""

from __future__ import annotations

import dis
import functools
import operator
import os
import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import atheris

ROOT = Path(__file__).resolve().parents[3]
for _part in ("tools/nsight-report", "perf-scripts"):
    sys.path.insert(0, str(ROOT / _part))

#: More memory for one input of some KiB is a finding, even if it is freed at once.
MOST_MB = 256
_PREFIX = "nsight-fuzz-"
#: Message of ``capture/native.py`` about a program that did not end by itself.
_DIED = ("killed by signal", ": not done after ")

_OPERATORS = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_PLAIN = frozenset((bool, bytes, float, int, str, type(None)))


@functools.cache
def _free_results() -> None:
    """atheris never frees the result of a comparison: with arrays this uses up all memory within minutes.

    It sets its function when it starts to fuzz, so this is done with the first input.
    """
    traced = atheris._trace_cmp

    def compared(left: Any, right: Any, which: int, *place: Any) -> Any:
        if type(left) in _PLAIN and type(right) in _PLAIN:
            return traced(left, right, which, *place)
        return _OPERATORS[dis.cmp_op[which]](left, right)

    atheris._trace_cmp = compared


def instrumented() -> AbstractContextManager[None]:
    """Modules imported inside are watched for coverage: only the project's, so that a target starts fast."""
    return atheris.instrument_imports(include=["nsight_report", "nsight_perf"])  # type: ignore[no-any-return]


with instrumented():
    from nsight_report.errors import NsightError


@functools.cache
def directory() -> Path:
    """This process's own, in memory where there is such a place; it takes what others need of the user's home."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    _remove_left(place)
    made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
    os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"] = str(made / "home")
    tempfile.tempdir = str(made)
    return made


def _remove_left(place: Path) -> None:
    """libFuzzer ends the process itself, so each process removes what earlier ones left behind."""
    for path in place.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdecimal() and not Path("/proc", number).exists():
            shutil.rmtree(path, ignore_errors=True)


def fuzz(
    one: Callable[[bytes], object],
    refusals: tuple[type[Exception], ...] = (NsightError,),
    **choices: Any,
) -> None:
    """Pass libFuzzer's inputs to ``one``; does not return. ``refusals``: errors that are reported to a user."""
    directory()
    warnings.simplefilter("error", RuntimeWarning)

    def guarded(data: bytes) -> None:
        _free_results()
        before = _peak_mb()
        try:
            one(data)
        except refusals as error:
            _check_told(error)
        grown = _peak_mb() - before
        assert grown < MOST_MB, f"{grown} MB for an input of {len(data)} bytes"

    atheris.Setup(sys.argv, guarded, **choices)
    atheris.Fuzz()


def _check_told(error: Exception) -> None:
    text = str(error)
    assert text.strip(), f"{type(error).__name__} without a message"
    if any(word in text for word in _DIED):
        raise AssertionError(text)


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
