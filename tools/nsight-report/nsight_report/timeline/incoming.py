# SPDX-License-Identifier: GPL-2.0-only
"""Messages and requests that came in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int
from ..stage import REQUEST
from ..tables.data_frames import column


def are_received(messages: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which of ``messages`` came in, from a NIC on: received ones, and requests (at a client their replies)."""
    return messages["direction"].isin(["rx", REQUEST]).to_numpy(bool)


def began_to_come(messages: pd.DataFrame) -> Int:
    """When the first byte of received ``messages`` came: not the begin of a request that was sent."""
    return column(messages["in_ns" if "in_ns" in messages else "first_ns"])
