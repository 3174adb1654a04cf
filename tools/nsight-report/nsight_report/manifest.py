# SPDX-License-Identifier: GPL-2.0-only
"""A capture's manifest.json: read with bounds, checked, never trusted."""

from __future__ import annotations

import builtins
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import files, losses
from .errors import BadInput

FORMAT = "nsight-capture"
#: Manifest of nsight-capsule, for ``nsight-report hops``.
CAPSULES = "nsight-capsules"
VERSIONS = (1,)
MODES = ("tracepoints", "intel-pt")
#: Captures from before version 0.2 have these in place of ``mode``.
_GRADES = {"trace": "tracepoints", "pt": "intel-pt"}
STATES = ("recording", "cut", "complete")
_MAX_BYTES = 16 << 20
_MAX_DEPTH = (
    64  # recorders nest 4 deep; values that nest far deeper cannot be printed from every point of the program
)

_RERECORD = "record again with nsight-record"


@dataclass(frozen=True)
class Manifest:
    """What the recorder wrote about a capture. ``raw`` is the whole object of the file."""

    mode: str
    cut: bool
    raw: dict[str, Any]

    def text(self, *keys: str) -> str:
        """The value under nested ``keys`` as text; '' if it is absent or not a plain value."""
        value: Any = self.raw
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return str(value) if isinstance(value, (str, int, float)) else ""

    def mapping(self, key: str) -> dict[str, Any]:
        """The object under ``key``; empty if it is absent or not an object."""
        value = self.raw.get(key)
        return value if isinstance(value, dict) else {}

    def list(self, key: str) -> builtins.list[dict[str, Any]]:
        """The objects in the list under ``key``; empty if it is absent or not a list."""
        value = self.raw.get(key)
        return [row for row in value if isinstance(row, dict)] if isinstance(value, builtins.list) else []

    def ns(self, edge: str, clock: str) -> int | None:
        """``start`` or ``stop`` in one clock, for example ``ns("start", "monotonic_ns")``."""
        value = self.mapping(edge).get(clock)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def syscall_names(self) -> dict[str, str]:
        """System call number to name on the recorded machine; entries of other shapes are left out."""
        return self._by_number("syscall_names")

    def drop_reasons(self) -> dict[str, str]:
        """Drop reasons of the recorded kernel: number to name; entries of other shapes are left out."""
        return self._by_number("drop_reasons")

    def counters(self) -> builtins.list[str]:
        """Names of performance counters by their number in the records; '' means that there is no such counter."""
        told = self.raw.get("counters")
        names = told[:16] if isinstance(told, builtins.list) else []
        return [name if isinstance(name, str) and len(name) < 64 else "" for name in names]

    def _by_number(self, key: str) -> dict[str, str]:
        return {
            str(number): name
            for number, name in self.mapping(key).items()
            if str(number).isdecimal() and len(str(number)) < 8 and isinstance(name, str)
        }

    def command(self) -> str:
        """The recorder's own command line."""
        argv = self.raw.get("command")
        return " ".join(str(a) for a in argv) if isinstance(argv, builtins.list) else ""

    def losses(self) -> losses.Ledger:
        """What the recorder itself counted as lost, and whether the capture was cut."""
        ledger = losses.Ledger("record")
        if self.cut:
            ledger.add("capture_was_cut", 1)
        for row in self.list("losses"):
            count, tool, what = row.get("count", 0), row.get("tool", "recorder"), row.get("what", "lost")
            if isinstance(count, int) and 0 < count < 1 << 62:
                ledger.add("recorder_lost", count, tool=tool, what=what)
            elif count is None:
                ledger.add("recorder_lost_unknown", 1, tool=tool, what=what)
        refused = self.raw.get("listen_overflows")
        if isinstance(refused, int) and 0 < refused < 1 << 62:
            ledger.add("accept_queue_full", refused)
        imported = self.mapping("imported").get("losses")
        for row in imported if isinstance(imported, builtins.list) else []:
            ledger.told(*_loss(row))
        if isinstance(why := self.raw.get("unreserved"), str):
            ledger.add("last_counts_not_reserved", 1, why=why)
        stopped = self.raw.get("stopped_by")
        if isinstance(stopped, str) and stopped.startswith("error"):
            ledger.add("recording_stopped_early", 1, stopped=stopped)
        return ledger


def _loss(row: Any) -> tuple[losses.Loss, int]:
    """A row of table ``losses`` that an import wrote; for an invalid row the count is 0, which enters nothing."""
    row = row if isinstance(row, dict) else {}
    count, severity = row.get("count"), row.get("severity")
    good = isinstance(count, int) and 0 < count < 1 << 62 and severity in losses.SEVERITIES
    key, cause, detail, remedy = (
        str(row.get(name, ""))[:1000] for name in ("key", "cause", "detail", "remedy")
    )
    return losses.Loss(key, severity if good else "info", cause, detail, remedy), count if good else 0


def load(capture: Path) -> Manifest:
    """Read and check ``capture``/manifest.json. Raises BadInput when it cannot be used."""
    return _check(capture / "manifest.json", read(capture, "nsight-record"))


def read(capture: Path, tool: str) -> Any:
    """The value in ``capture``/manifest.json; its format is not checked. Raises BadInput; ``tool`` makes such directories."""
    path = capture / "manifest.json"
    try:
        if not capture.exists():
            raise BadInput(f"{capture}: no such capture", f"give the directory that {tool} wrote")
        if not capture.is_dir():
            raise BadInput(f"{capture}: not a capture directory", _no_directory(capture, tool))
        with files.opened(path) as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(
            f"{capture}: no manifest.json in it, so it is not a capture",
            f"give the directory that {tool} wrote",
        ) from None
    except PermissionError:
        raise BadInput(
            f"{path}: not readable by this user", f"it is private: sudo chown -R $USER {capture}"
        ) from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", f"record again with {tool}") from None
    if len(data) > _MAX_BYTES:
        raise BadInput(
            f"{path}: larger than {_MAX_BYTES >> 20} MiB, not a manifest", f"record again with {tool}"
        )
    try:
        return _writable(json.loads(data), _MAX_DEPTH)
    except _TooDeepError:
        raise BadInput(f"{path}: nested too deeply, not a manifest", f"record again with {tool}") from None
    except (ValueError, RecursionError):
        raise BadInput(
            f"{path}: truncated or not JSON",
            f"restore the file from where the capture came from, or record again with {tool}",
        ) from None


class _TooDeepError(Exception):
    """A value is nested deeper than allowed."""


def _writable(value: Any, depth: int) -> Any:
    """``value`` with only texts that can be written: JSON can contain half of a surrogate pair."""
    if not depth:
        raise _TooDeepError
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, builtins.list):
        return [_writable(of, depth - 1) for of in value]
    if isinstance(value, dict):
        return {_writable(key, depth - 1): _writable(of, depth - 1) for key, of in value.items()}
    return value


def _no_directory(path: Path, tool: str) -> str:
    """What to do if the path is a file and not a capture."""
    try:
        with files.opened(path.resolve()) as file:  # a pipe would block for ever
            if file.read(8) == b"PERFILE2":
                return f"make a capture of it: nsight-report import {path}"
    except (OSError, BadInput):
        pass
    return f"give the directory that {tool} wrote"


def _check(path: Path, raw: Any) -> Manifest:
    if isinstance(raw, dict) and raw.get("format") == CAPSULES:
        raise BadInput(
            f"{path}: made by nsight-capsule; packets are no messages", f"nsight-report hops {path.parent}"
        )
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise BadInput(
            f"{path}: not the manifest of an NSight capture", "give the directory that nsight-record wrote"
        )
    version = raw.get("version")
    if version not in VERSIONS or isinstance(version, bool):
        known = ", ".join(str(v) for v in VERSIONS)
        raise BadInput(
            f"{path}: capture format version {str(version)[:20]!r} is unknown (known: {known})",
            "use the nsight-report that belongs to the nsight-record that made it",
        )
    mode = raw["mode"] if "mode" in raw else _GRADES.get(str(raw.get("grade")))
    if mode not in MODES:
        raise BadInput(f"{path}: unknown mode {str(mode)[:20]!r} (known: {', '.join(MODES)})", _RERECORD)
    state = raw.get("state")
    if state not in STATES:
        raise BadInput(f"{path}: unknown state {str(state)[:20]!r}", _RERECORD)
    manifest = Manifest(mode, state != "complete", raw)
    for clock in ("monotonic_ns", "realtime_ns"):
        _check_times(path, manifest.ns("start", clock), manifest.ns("stop", clock), clock == "monotonic_ns")
    return manifest


def _check_times(path: Path, start: int | None, stop: int | None, ascending: bool) -> None:
    """Raise BadInput for times that no table can hold; ``ascending``: the clock is one that nobody sets."""
    known = [ns for ns in (start, stop) if ns is not None]
    if not all(0 <= ns < 1 << 62 for ns in known) or (ascending and known != sorted(known)):
        raise BadInput(f"{path}: impossible times: start {start}, stop {stop}", _RERECORD)
