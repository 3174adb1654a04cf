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
    """Which of ``messages`` came in from a NIC: received ones, and requests (at a client, their replies)."""
    return messages["direction"].isin(["rx", REQUEST]).to_numpy(bool)


def began_to_come(messages: pd.DataFrame) -> Int:
    """When the first byte of received ``messages`` arrived; for a sent request this is not its begin."""
    return column(messages["in_ns" if "in_ns" in messages else "first_ns"])
