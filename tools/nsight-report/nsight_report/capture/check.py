# SPDX-License-Identifier: GPL-2.0-only
"""Checks that the files of a capture belong to one recording, before any conclusion is drawn."""

from __future__ import annotations

from ..errors import BadInput
from ..manifest import Manifest
from ..units import duration

# Tools start and stop a little before and after the recorder's own timestamps.
_SLACK_NS = 30_000_000_000

_HINT = "the files are from different recordings or boots: copy one capture directory whole, or record again"


def check_together(
    manifest: Manifest,
    probes: tuple[int, int] | None,
    cores: tuple[int, int] | None,
    names: tuple[str, str] = ("events.tsv", "perf.data"),
) -> None:
    """Raise BadInput when message events, contexts and manifest do not overlap in time.

    ``probes``, ``cores``: time span of the events, and of the contexts; None: there are none. ``names``: names of
    the files that contain them.
    """
    if probes is None:
        raise BadInput(f"{names[0]}: no message was recorded", "was there traffic during the recording?")
    if cores is None:
        raise BadInput(
            f"{names[1]}: no activity of any core was recorded",
            "see perf.log in the capture; record again" if names[1] == "perf.data" else "record again",
        )
    if probes[1] < cores[0] or cores[1] < probes[0]:
        raise BadInput(
            f"{names[0]} and {names[1]} do not overlap in time ({_apart(probes, cores)} apart)", _HINT
        )
    start = manifest.ns("start", "monotonic_ns")
    stop = manifest.ns("stop", "monotonic_ns")
    if start is None:
        return
    whole = (start - _SLACK_NS, (stop if stop is not None else 1 << 62) + _SLACK_NS)
    for name, span in zip(names, (probes, cores), strict=True):
        if span[1] < whole[0] or whole[1] < span[0]:
            raise BadInput(
                f"{name}: outside the recording in manifest.json ({_apart(span, whole)} apart)", _HINT
            )


def _apart(a: tuple[int, int], b: tuple[int, int]) -> str:
    return duration(max(a[0] - b[1], b[0] - a[1]))
