# SPDX-License-Identifier: GPL-2.0-only
"""Run nsight-decode: converts the Intel PT of a perf.data to a directory of Parquet files, one per core."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from .. import files
from ..capture import native
from ..errors import BadInput, OutputError
from ..losses import Ledger

I64 = npt.NDArray[np.int64]

DECODER = "nsight-decode"


@dataclass(frozen=True)
class Decoded:
    """Output of nsight-decode: one file per core, in the order of cores, and its own counts."""

    files: list[Path]
    account: dict[str, Any]


def traced(perf_data: Path, symfs: Path | None) -> tuple[int, int]:
    """Begin and end of the trace, in the perf clock."""
    with tempfile.TemporaryFile() as file:
        _run("info", perf_data, symfs, ["--json"], file)
        file.seek(0)
        told = json.load(file)
    if told["clock"] != "perf":
        raise BadInput(
            f"{perf_data}: the relation of TSC and perf's clock is not in it: messages and trace have no common time",
            "the kernel's clocksource must be the TSC, perf record must not be given -k, and intel_pt/tsc=1/",
        )
    known = [b for b in told["buffers"] if b["begin_ns"] is not None]
    if not known:
        raise BadInput(
            f"{perf_data}: its Intel PT data contain no point where decoding can begin",
            "record again, longer or with a smaller psb_period",
        )
    return min(b["begin_ns"] for b in known), max(b["end_ns"] for b in known)


def decode(perf_data: Path, symfs: Path | None, into: Path, windows: I64 | None = None) -> Decoded:
    """Run nsight-decode, which writes to the directory ``into``.

    ``symfs``: directory with the recorded machine's files; default: this machine's.
    ``windows``: intervals to decode, nothing else is decoded (rows of begin, end in the perf clock, and cpu).
    """
    try:
        args = ["--out", str(into)]
        if windows is not None:
            wanted = into / "windows"
            np.savetxt(wanted, windows, fmt="%d-%d:%d")
            args += ["--time", f"@{wanted}"]
        _run("calls", perf_data, symfs, args)
        told = json.loads((into / "calls.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise OutputError(
            f"{error.filename}: {error.strerror}", "free some disk space, or write elsewhere with -o DIR"
        ) from None
    return Decoded(sorted((into / "calls").glob("*.parquet")), told)


def _run(
    command: str, perf_data: Path, symfs: Path | None, args: list[str], stdout: IO[bytes] | None = None
) -> None:
    data = perf_data / "data" if perf_data.is_dir() else perf_data
    args = [command, str(perf_data.resolve()), *args]
    args += ["--symfs", str(symfs.resolve())] if symfs else []
    with files.opened(data) as file:
        size = os.fstat(file.fileno()).st_size
    native.run(DECODER, args, size, stdout)


def account(decoded: Decoded, ledger: Ledger) -> None:
    """Enter what nsight-decode counted as lost or not decoded."""
    for loss in decoded.account["losses"]:
        try:
            ledger.add(f"decode_{loss['key']}", int(loss["count"]), **loss["words"])
        except (KeyError, TypeError):
            raise BadInput(
                "nsight-decode is of another version than this package", "run: make decoder"
            ) from None
