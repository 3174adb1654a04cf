# SPDX-License-Identifier: GPL-2.0-only
"""The Python API: a capture whose tables are pandas DataFrames.

>>> import nsight_report
>>> c = nsight_report.open("x.nsight")          # doctest: +SKIP
>>> c.causes[["cause", "total_deviation_ns"]]    # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

from .capture_tables import CaptureTables
from .pipeline import Pipeline, Progress, _quiet
from .stage import Options


class Capture(CaptureTables):
    """One analysed capture. Every table of ``schema.py`` is an attribute, made when first used.

    Raises errors.BadInput (and its kin) like the command line; ``hint`` holds the fix.
    """

    def summary(self) -> dict[str, Any]:
        """The object that ``nsight-report --json`` prints."""
        from .export.json import summary_object

        return summary_object(self)


#: Old names of options, accepted for one release.
_FORMER = {"target": "slow", "reference": "baseline"}


def open_capture(
    capture: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    progress: Progress = _quiet,
    **options: Any,
) -> Capture:
    """Open a capture directory; ``options`` are those of ``stage.Options`` (slow, baseline, app, ...).

    Nothing is computed before a table is requested.
    """
    for old in set(_FORMER) & set(options):
        warnings.warn(f"option {old!r} is called {_FORMER[old]!r} now", DeprecationWarning, stacklevel=2)
        options[_FORMER[old]] = options.pop(old)
    known = {field.name for field in dataclasses.fields(Options)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; options are: {', '.join(sorted(known))}")
    return Capture(
        Pipeline(Path(capture), Options(**options), Path(output) if output is not None else None, progress)
    )
