# SPDX-License-Identifier: GPL-2.0-only
"""The Python API: a capture whose tables are pandas DataFrames.

>>> import nsight_report
>>> c = nsight_report.open("x.nsight")          # doctest: +SKIP
>>> c.causes[["cause", "total_deviation_ns"]]    # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pandas as pd

from . import schema
from .frames import to_pandas
from .manifest import Manifest
from .pipeline import Pipeline, Progress, _quiet
from .stages import Options


class Capture:
    """One analysed capture. Every table of ``schema.py`` is an attribute, made when first used.

    Raises errors.BadInput (and its kin) like the command line; ``hint`` holds the cure.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._frames: dict[str, pd.DataFrame] = {}
        self._analysed = False

    @property
    def path(self) -> Path:
        """The capture directory."""
        return self.pipeline.capture

    @property
    def manifest(self) -> Manifest:
        """What was recorded, and how."""
        return self.pipeline.manifest

    @property
    def options(self) -> Options:
        """The choices the analysis was made with."""
        return self.pipeline.options

    def analyse(self, rerun: str | None = None) -> list[str]:
        """Bring every stage up to date; returns the stages that ran. Attributes do this by themselves."""
        ran = self.pipeline.run(rerun)
        self._analysed = True
        self._frames.clear()
        return ran

    def frame(self, name: str) -> pd.DataFrame:
        """Table ``name`` of ``schema.py``."""
        if not self._analysed:
            self.analyse()
        if name not in self._frames:
            table = self.pipeline.losses() if name == "losses" else self.pipeline.table(name)
            self._frames[name] = to_pandas(table)
        return self._frames[name]

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name in schema.TABLES:
            return self.frame(name)
        raise AttributeError(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *schema.TABLES]

    def lifetime(self, message_id: int) -> pd.DataFrame:
        """The calls of one message, from the NIC to the application; see ``calls.of_message.calls_of``.

        Raises KeyError for a message that is not there.
        """
        from .calls.of_message import calls_of

        rows = self.messages[self.messages["message_id"] == message_id]
        if not len(rows):
            raise KeyError(f"no message {message_id}")
        return calls_of(rows.iloc[0], self.frame("calls"))

    def summary(self) -> dict[str, Any]:
        """The object that ``nsight-report --json`` prints."""
        from .export.json import summary_object

        return summary_object(self)


def open_capture(
    capture: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    progress: Progress = _quiet,
    **options: Any,
) -> Capture:
    """Open a capture directory; ``options`` are those of ``stages.Options`` (target, reference, app, ...).

    Nothing is computed before a table is asked for.
    """
    known = {field.name for field in dataclasses.fields(Options)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; options are: {', '.join(sorted(known))}")
    return Capture(
        Pipeline(Path(capture), Options(**options), Path(output) if output is not None else None, progress)
    )
