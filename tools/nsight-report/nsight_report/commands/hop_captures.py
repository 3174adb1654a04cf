# SPDX-License-Identifier: GPL-2.0-only
"""Captures of nsight-record used with directories of nsight-capsule: the kernel on which each was recorded, and its activity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import manifest as manifests
from ..errors import BadInput
from ..hops import Collection
from ..hops.cores import Activity
from ..hops.ways import find
from ..names import printable
from ..pipeline import Pipeline

_TABLES = ("contexts", "thread_states")


def split(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Directories of nsight-capsule, including those in captures, and captures. Raises BadInput."""
    captures = [path for path in paths if _is_capture(path)]
    found: dict[Path, Path] = {}
    for path in paths:
        for directory in find(path) if path in captures else [path]:
            found.setdefault(directory.resolve(), directory)
    if not found:
        raise BadInput(
            f"{paths[0]}: a capture without a directory of nsight-capsule in it",
            "give what nsight-capsule wrote while it was recorded as well",
        )
    return list(found.values()), captures


def _is_capture(path: Path) -> bool:
    raw = manifests.read(path, "nsight-capsule")
    return isinstance(raw, dict) and raw.get("format") == manifests.FORMAT


def activities(
    collection: Collection, captures: Sequence[Path]
) -> tuple[dict[int, Activity], list[dict[str, Any]]]:
    """By kernel of the collection, the recorded activity of cores and threads; and the captures' errors and warnings. Raises BadInput."""
    found: dict[int, Activity] = {}
    lost: list[dict[str, Any]] = []
    of: dict[int, Path] = {}
    for path in captures:
        pipeline = Pipeline(path)
        boot_id = pipeline.manifest.text("host", "boot_id")
        if not boot_id or boot_id not in collection.boot_ids:
            raise BadInput(
                f"{path}: recorded on none of the kernels that the packets passed, or after another boot",
                "give captures that nsight-record made while nsight-capsule ran",
            )
        if pipeline.manifest.mode != "tracepoints":
            raise BadInput(
                f"{path}: a capture of mode {pipeline.manifest.mode}, which does not show when threads were ready",
                "record with tracepoints, beside it or instead",
            )
        kernel = collection.boot_ids.index(boot_id)
        if kernel in found:
            raise BadInput(f"{path}: recorded on the same kernel as {of[kernel]}", "give one of them")
        pipeline.run_for(_TABLES)
        found[kernel] = Activity(*(pipeline.stored(name) for name in _TABLES))
        of[kernel] = path
        lost += [
            {**row, "detail": f"{printable(path.name, 64)}: {row['detail']}"}
            for row in pipeline.losses().to_pylist()
            if row["severity"] != "info"
        ]
    return found, lost
