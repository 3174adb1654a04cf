# SPDX-License-Identifier: GPL-2.0-only
"""Annotations of packets: the classes of points that stamped them, as a capsule has them and as text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from .records import ANNOTATED, N_SLOTS, Records, slots

#: Kinds of devices by number; each has two classes, in and out: bits 2 * number and 2 * number + 1. nsight-capsule has
#: the same list.
KINDS = ("nic", "veth", "bridge", "vlan", "bond", "macvlan", "tunnel", "tap", "other")
EVERYWHERE = (1 << 32) - 1


def there(capsule: Records) -> npt.NDArray[np.bool_]:
    """Whether each capsule has an annotation."""
    return np.asarray(slots(capsule)[:, N_SLOTS - 1] == ANNOTATED, bool)


def of(capsule: Records) -> npt.NDArray[np.int64]:
    """The annotation of each capsule; EVERYWHERE without one."""
    times = capsule["times"][:, N_SLOTS - 1].astype(np.int64)
    return np.where(there(capsule), times, EVERYWHERE).astype(np.int64)


def text(mask: int) -> str:
    """The classes as users give them; bits of unknown kinds by their number.

    >>> text(EVERYWHERE), text(0), text(0b1011)
    ('all', 'none', 'nic, veth:out')
    """
    if mask == EVERYWHERE:
        return "all"
    names = []
    for kind in range(16):
        ways = mask >> 2 * kind & 3
        name = KINDS[kind] if kind < len(KINDS) else f"kind {kind}"
        if ways:
            names.append(name + ("", ":in", ":out", "")[ways])
    return ", ".join(names) or "none"


def texts(masks: npt.NDArray[np.int64]) -> pd.Categorical[str]:
    """``text`` of each; each distinct annotation is formatted once."""
    different, codes = np.unique(masks, return_inverse=True)
    return pd.Categorical.from_codes(
        codes.reshape(-1), pd.Index([text(int(mask)) for mask in different], dtype=object)
    )
