# SPDX-License-Identifier: GPL-2.0-only
"""The stages of the pipeline, in order. Each package defines its own in ``stage.py``."""

from __future__ import annotations

from collections.abc import Iterable

from .anomalies.stage import STAGE as ANOMALIES
from .attribution.stage import STAGE as ATTRIBUTION
from .calls.stage import STAGE as CONTEXTS
from .capture.stage import STAGE as EVENTS
from .clocks.stage import STAGE as CLOCKS
from .cores.stage import STAGE as CORES
from .lifetimes.stage import STAGE as MESSAGES
from .queuing.stage import STAGE as QUEUING
from .requests.stage import STAGE as REQUESTS
from .stage import Options, Stage

STAGES = (CLOCKS, EVENTS, MESSAGES, REQUESTS, CONTEXTS, ANOMALIES, ATTRIBUTION, QUEUING, CORES)

BY_NAME = {stage.name: stage for stage in STAGES}
#: Stages of a diagnosis; the tables of the others depend only on the recording, not on which messages are slow.
DIAGNOSIS = tuple(stage.name for stage in STAGES if stage.diagnosis)
MADE_BY = {table: stage.name for stage in STAGES for table in stage.tables}
#: Tables that are not named like their schema.
SPECS = {table: spec for stage in STAGES for table, spec in stage.schemas}


def in_order(stages: Iterable[Stage], options: Options) -> list[Stage]:
    """``stages`` in an order where each follows the stages whose tables it reads with these options."""
    waiting, found = list(stages), list[Stage]()
    while waiting:
        done = {stage.name for stage in found}
        found.append(next(stage for stage in waiting if done.issuperset(stage.inputs(options)[0])))
        waiting.remove(found[-1])
    return found
