# SPDX-License-Identifier: GPL-2.0-only
"""In which phase the slow requests spend their time: figures of few requests, checked by hand."""

from __future__ import annotations

import numpy as np
from machinery.made_up.tables import Row, table
from nsight_report.report_text import phase_columns, requests_told, slowest_told
from nsight_report.requests.figures import Figures, figures
from nsight_report.selection.slices import Slice
from nsight_report.tables.messages import Messages

PID = 5
PIDS = np.array([PID])


def request(i: int, *phases: int, **over: object) -> Row:
    """Receive, queue, service and transmit as given."""
    names = ("receive_dur_ns", "queue_dur_ns", "service_dur_ns", "transmit_dur_ns")
    return {
        "request_id": i, "role": "server", "join": "alternation", "certain": True, "pid": PID, "lport": 80,
        "latency_ns": sum(phases), **dict(zip(names, phases, strict=True)),
    } | over  # fmt: skip


def of(rows: list[Row], role: str = "server", port: int | None = None) -> Figures | None:
    slices = [(name, Slice.parse(name).rows) for name in ("p25-75", "p90-99", "p99-100", "p99.9-100")]
    requests = Messages(table("requests", rows), "requests")
    return figures(requests, role, PIDS, port, slices, "p25-75", "p99-100")


def hundreds() -> list[Row]:
    """1980 requests of 1 + 2 + 3 + 4 us; 20, the slowest 1 %, take 90 us more in service and 10 more to the driver."""
    rows = [request(i, 1000, 2000, 3000, 4000) for i in range(1980)]
    return rows + [request(i, 1000, 2000, 93_000, 14_000) for i in range(1980, 2000)]


def test_the_tail_is_the_phase_with_most_of_the_difference() -> None:
    found = of(hundreds())
    assert found is not None
    usual, slow = found.slices[0], found.slices[-1]
    assert (usual.name, usual.n, usual.latency_ns) == ("p25-75", 1000, 10_000)
    assert (slow.name, slow.n, slow.latency_ns) == ("p99-100", 20, 110_000)
    assert slow.phases_ns == {"receive": 1000, "queue": 2000, "service": 93_000, "transmit": 14_000}
    # They take 100 us more, 90 of these in service.
    assert found.tail == ("service", 0.9)
    assert found.percentiles == {50.0: 10_000, 90.0: 10_000, 99.0: 10_000}
    # By latency; among equal ones, those that came last.
    assert [one.request_id for one in found.slowest] == [1999, 1998, 1997, 1996, 1995]
    assert (
        slowest_told(found)[0]
        == "request 1999: 110 us (receive 1.00 us, queue 2.00 us, service 93.0 us, transmit 14.0 us)"
    )
    told = requests_told(found)
    assert told[0] == "Requests: 2,000 received and answered"
    assert "90% of what the requests of p99-100 take more than those of p25-75 is service" in told


def test_means_add_up_whatever_they_are_rounded_from() -> None:
    # Thirds: means of 1/3, 1/3, 1/3 and 0 over 30 requests; three phases have 10 ns each in all.
    rows = [request(i, *(1 if i % 3 == p else 0 for p in range(3)), 0) for i in range(30)]
    found = of(rows)
    assert found is not None
    for row in found.slices:
        assert sum(row.phases_ns.values()) == row.latency_ns == 1


def test_requests_that_were_sent_meanwhile_are_those_of_their_parents() -> None:
    rows = hundreds()
    # The slowest requests sent two requests each to a database, 40 us and 45 us long, from a separate port.
    sent = {"role": "client", "lport": 50_000}
    rows += [
        request(3000 + 2 * i + n, 0, 0, 40_000 + 5000 * n, 0, parent_request_id=1980 + i, **sent)
        for i in range(20)
        for n in (0, 1)
    ]
    found = of(rows, port=80)
    assert found is not None
    assert (found.n, found.n_sent, found.others) == (2000, 40, 40)
    assert [(row.name, row.sent_ns) for row in found.slices] == [
        ("p25-75", 0),
        ("p90-99", 0),
        ("p99-100", 85_000),
    ]
    asked = of(rows, "client", 80)
    assert asked is not None
    assert (asked.n, asked.others, phase_columns(asked)[0]) == (40, 2000, "transmit")
    assert requests_told(asked)[0] == "Requests: 40 sent by the application"


def test_requests_of_others_and_of_other_ports_are_left_out() -> None:
    rows = [request(0, 1, 1, 1, 1, pid=PID + 1), request(1, 1, 1, 1, 1, lport=81)]
    assert of(rows[:1]) is None
    found = of([*rows, request(2, 1, 1, 1, 1, certain=False)], port=80)
    assert found is not None
    assert (found.n, found.n_certain, found.slices, found.tail) == (1, 0, [], None)
