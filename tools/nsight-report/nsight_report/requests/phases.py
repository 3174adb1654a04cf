# SPDX-License-Identifier: GPL-2.0-only
"""Where a request was at what time: points from its messages' timestamps, and phases between them that add up exactly."""

from __future__ import annotations

import numpy as np

from ..losses import Ledger
from .exchanges import Exchanges
from .rows import I64, Rows

#: Columns of points in time, in the order of a received request.
POINTS = (
    "first_ns", "last_byte_ns", "handoff_ns", "read_ns", "first_send_ns", "last_send_ns", "driver_ns", "completion_ns", "acked_ns",
    "last_ns",
)  # fmt: skip
#: Columns of durations, by role in time order.
PHASES = ("receive_dur_ns", "queue_dur_ns", "service_dur_ns", "transmit_dur_ns")
OF_CLIENT = ("transmit_dur_ns", "service_dur_ns", "receive_dur_ns", "queue_dur_ns")


def measure(rows: Rows, found: Exchanges, client: np.ndarray, ledger: Ledger) -> dict[str, I64]:
    """``POINTS``, ``latency_ns`` and ``PHASES`` of each request; ``client``: which requests were sent.

    A missing timestamp moves the border to the one before it: a hand-off to the last arrival, the driver to the
    return of the send. A timestamp that is earlier than the one before it is set to the same time, and counted.
    """
    came, gone = np.where(client, found.answer, found.ask), np.where(client, found.ask, found.answer)
    came_last, gone_last = (
        np.where(client, found.answered, found.asked),
        np.where(client, found.asked, found.answered),
    )
    arrived = _either(rows["arrival_last_ns"][came_last], rows["first_ns"][came_last])
    handoff = rows["handoff_ns"][came_last]
    driver = rows["driver_ns"][gone_last]
    first, read = rows["first_ns"][came], rows["app_ns"][came_last]
    at_socket, left = _either(handoff, arrived), _either(driver, rows["app_ns"][gone_last])
    first_send, last_send = rows["at_ns"][gone], _last_send(rows, gone_last)
    at_server = np.stack([first, at_socket, read, last_send, left])
    at_client = np.stack([first_send, left, first, at_socket, read])
    recorded = np.where(client, at_client, at_server)
    points = np.maximum.accumulate(recorded, axis=0) if recorded.size else recorded
    ledger.add("request_timestamps_out_of_order", int(np.count_nonzero((points != recorded).any(axis=0))))
    call = np.where(client, rows["call_ns"][gone], rows["last_call_ns"][gone_last])
    ledger.add("requests_without_send_call", int(np.count_nonzero(call < 0)))
    spans = np.diff(points, axis=0)
    # At a server receive, queue, service, transmit; at a client transmit, service, receive, queue.
    order = {name: (PHASES.index(name), OF_CLIENT.index(name)) for name in PHASES}
    return {
        "first_ns": points[0],
        "last_byte_ns": arrived,
        "handoff_ns": handoff,
        "read_ns": read,
        "first_send_ns": first_send,
        "last_send_ns": last_send,
        "driver_ns": driver,
        "completion_ns": rows["completion_ns"][gone_last],
        "acked_ns": rows["acked_ns"][gone_last],
        "last_ns": points[-1],
        "latency_ns": points[-1] - points[0],
        **{name: np.where(client, spans[at], spans[of]) for name, (of, at) in order.items()},
    }


def _last_send(rows: Rows, sent: I64) -> I64:
    """When the last send call of each sent message was entered; where that is not known, the latest time by which it was."""
    returned, driver = rows["app_ns"][sent], rows["driver_ns"][sent]
    by = np.where((returned >= 0) & (driver >= 0), np.minimum(returned, driver), _either(returned, driver))
    return _either(rows["last_call_ns"][sent], by)


def _either(one: I64, other: I64) -> I64:
    return np.where(one >= 0, one, other)
