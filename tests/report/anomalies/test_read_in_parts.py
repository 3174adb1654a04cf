# SPDX-License-Identifier: GPL-2.0-only
"""A thread works on a message from the first read of it, even if a later read finishes it."""

from __future__ import annotations

import numpy as np
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, message, syscall
from nsight_report.timeline.occupancy import Reads, by_thread
from report.anomalies.test_causes import IDLE, SOFTIRQ, diagnose


def behind(begun: int | None) -> tuple[Scene, int]:
    """Two messages that are handed off together; the thread reads the first one whole at 4000, and a part of it at ``begun``."""
    scene = Scene()
    t = scene.quiet(40)
    of = {} if begun is None else {"begun_ns": t + begun, "n_reads": 2}
    scene.messages.append(message(40, t, t + 500, t + 4000, **of))
    scene.messages.append(message(41, t + 1, t + 501, t + 4500))
    scene.cores(t, SOFTIRQ, [(0, 600, "idle", "idle", *IDLE), (600, 5000, "thread", "server", TID, "server")])
    scene.threads(t, [(0, 600, "sleeping"), (600, 5000, "running")])
    return scene, t


def blocked_ns(scene: Scene) -> int:
    rows = diagnose(scene)[0].anomalies.to_pylist()
    return sum(r["observed_ns"] for r in rows if (r["anomaly"], r["message_id"]) == ("hol", 41))


def test_who_waits_for_a_message_waits_from_the_first_read_of_it() -> None:
    # From the entry of the read that finishes message 40 (3800) to the read of message 41 (4300).
    assert blocked_ns(behind(None)[0]) == 500
    assert blocked_ns(behind(700)[0]) == 3600


def test_a_thread_that_waits_for_the_rest_of_a_message_blocks_nobody() -> None:
    scene, t = behind(700)
    scene.calls.append(syscall(TID, t + 1400, t + 3400, "epoll_wait"))
    assert blocked_ns(scene) == 700 + 500


def test_work_on_a_message_that_was_read_in_parts_is_one_interval() -> None:
    """Message 1 is begun at 10 and finished at 50, message 2 is begun at 60; at 70 the thread waits, at 90 it finishes that."""
    owner, start = np.array([1, 2, 1, 2]), np.array([50, 90, 10, 60])
    tiles = by_thread(Reads(owner, np.full(4, TID), start, start), np.array([TID, TID]), np.array([70, 95]))
    of = [(o, s, e) for o, s, e in zip(tiles.owner, tiles.start, tiles.end, strict=True) if o >= 0]
    assert of == [(1, 10, 60), (2, 60, 70), (2, 90, 95)]
