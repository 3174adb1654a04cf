# SPDX-License-Identifier: GPL-2.0-only
"""Phases of section 5.2 of the paper: what a slow message met and comparable messages did not."""

from ..selection.options import Selection
from ..selection.population import Noise, Population, select
from ..selection.slices import Slice
from ..timeline.arrival import Host
from ..timeline.recording import Recording
from .find import find

__all__ = ["Host", "Noise", "Population", "Recording", "Selection", "Slice", "find", "select"]
