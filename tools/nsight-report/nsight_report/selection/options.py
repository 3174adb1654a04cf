# SPDX-License-Identifier: GPL-2.0-only
"""The user's options of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..stage import CHOSEN, Options
from .slices import Slice

# More messages than this add nothing to a median, and windows cost memory.
MAX_BASELINE = 20_000
#: The limit if the calls of each message are compared.
BASELINE_WITH_CALLS = 1_000
#: The limit if each message must be decoded first.
FEW_BASELINE = 500


@dataclass(frozen=True)
class Selection:
    """Slow and baseline messages of a diagnosis, and which messages they are chosen from.

    ``app`` selects by process name or pid, ``port`` by the application's own port; when both
    are None the application with the most messages on its own listening side is taken.
    ``granularity_ns``: deviations at or below it are noise of the timestamps and ignored.
    ``categories``: path of a CSV whose rows come before the built-in categories. ``max_baseline``: a
    larger baseline slice is thinned to this. ``explained``: a function is not reported itself if nested anomalies
    explain this share of its deviation.
    """

    slow: Slice = field(default_factory=lambda: Slice.parse("p99-100"))
    baseline: Slice = field(default_factory=lambda: Slice.parse("p25-75"))
    app: str | None = None
    port: int | None = None
    direction: str = "rx"
    granularity_ns: int = 1_000
    categories: str | None = None
    max_baseline: int = MAX_BASELINE
    explained: float = 0.8

    @staticmethod
    def of(choices: Options) -> Selection:
        """From the user's options. Raises errors.UsageError for an invalid slice."""
        return Selection(
            slow=Slice.parse(choices.slow),
            baseline=Slice.parse(choices.baseline),
            app=choices.app,
            port=choices.port,
            direction=choices.direction,
            categories=choices.categories,
            explained=choices.nested / 100,
            max_baseline=FEW_BASELINE if choices.decode == CHOSEN else MAX_BASELINE,
        )
