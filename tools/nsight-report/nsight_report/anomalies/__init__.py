# SPDX-License-Identifier: GPL-2.0-only
"""Phases of section 5.2 of the paper: what a slow message met that comparable messages did not."""

from .find import Recorded, find
from .options import Options
from .population import Population, select
from .slices import Slice

__all__ = ["Options", "Population", "Recorded", "Slice", "find", "select"]
