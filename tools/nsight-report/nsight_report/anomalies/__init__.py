# SPDX-License-Identifier: GPL-2.0-only
"""Phases of section 5.2 of the paper: what a slow message met that comparable messages did not."""

from .arrival import Host
from .find import find
from .options import Options
from .population import Noise, Population, select
from .recorded import Recorded
from .slices import Slice

__all__ = ["Host", "Noise", "Options", "Population", "Recorded", "Slice", "find", "select"]
