# SPDX-License-Identifier: GPL-2.0-only
"""What the commands report about requests: terminal, JSON, page and show, from a capture whose numbers are known."""

from __future__ import annotations

import io
import json
from pathlib import Path

import nsight_report
import pyarrow as pa
import pytest
from machinery.made_up.capture import US, World, blocking_of, write_capture
from machinery.made_up.tables import table
from nsight_report.cli import main
from nsight_report.export.html import render, write_report
from nsight_report.export.terminal import print_summary
from nsight_report.plots.figures import Sheet, drawn
from nsight_report.summary import summarise
from nsight_report.tables.data_frames import to_pandas

PHASES = ("receive_dur_ns", "queue_dur_ns", "service_dur_ns", "transmit_dur_ns")


class Answering(World):
    """Each message is a request of 1 + 2 + 3 + 4 us; every hundredth is served for 500 us."""

    def tables(self) -> dict[str, pa.Table]:
        """Every table of the pipeline."""
        rows = []
        for m in self.messages:
            n = m["message_id"]
            phases = (US, 2 * US, (500 if n % 100 == 0 else 3) * US, 4 * US)
            rows.append({
                "request_id": n, "last_message_id": n, "reply_message_id": n, "last_reply_message_id": n, "conn_id": m["conn_id"],
                "role": "server", "join": "alternation", "certain": True, "pid": m["pid"], "tid": m["tid"], "lport": m["lport"],
                "first_ns": m["first_ns"], "latency_ns": sum(phases), **dict(zip(PHASES, phases, strict=True)),
            })  # fmt: skip
        return {**super().tables(), "requests": table("requests", rows)}


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("told") / "a.nsight", Answering())


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_terminal_says_which_phase_is_the_tail(answering: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(said(capsys, answering).split())
    assert "Requests: 2,000 received and answered" in out
    # 20 of 2000 take 497 us more, all of it in service.
    assert "100% of what the requests of p99-100 take more than those of p25-75 is service" in out
    assert "p99-100 20 507 us 1.00 us 2.00 us 500 us 4.00 us" in out
    assert (
        "slowest: request 1900: 507 us (receive 1.00 us, queue 2.00 us, service 500 us, transmit 4.00 us)"
        in out
    )


def test_slices_of_requests_are_those_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {"slow": "100us-", "baseline": "p0-50"}
    capture = write_capture(tmp_path / "a.nsight", Answering(), **chosen)
    words = [word for name, spec in chosen.items() for word in (f"--{name}", spec)]
    made = json.loads(said(capsys, capture, "--json", *words))["requests"]
    assert [(s["slice"], s["n"], s["service_ns"]) for s in made["slices"]] == [
        ("p0-50", 1000, 3 * US),
        ("100us-", 20, 500 * US),
    ]
    assert made["tail"] == {"phase": "service", "share": 1.0}
    assert list(made) == [
        "role",
        "n",
        "n_certain",
        "n_sent",
        "p50_ns",
        "p99_ns",
        "p999_ns",
        "max_ns",
        "tail",
        "slices",
        "slowest",
    ]
    assert list(made["slowest"][0]) == [
        "request_id",
        "latency_ns",
        "receive_ns",
        "queue_ns",
        "service_ns",
        "transmit_ns",
    ]
    assert (made["p50_ns"], made["p99_ns"], made["max_ns"]) == (10 * US, 10 * US, 507 * US)


def test_without_requests_of_a_role_the_other_is_pointed_at(
    answering: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, answering, "--role", "client")
    assert "Requests: 0 sent by the application" in out
    assert "--role server: the requests that it received (2,000)" in out


def test_page_has_the_table(answering: Path) -> None:
    capture = nsight_report.open(answering)
    page = render(Sheet.of(capture, summarise(capture)), [], 0)
    assert '<li><a href="#requests">Requests</a></li>' in page
    assert "Requests: 2,000 received and answered</h2>" in page
    row = page[page.index("phases add up to it") :]
    assert row.index("<td>p99-100</td>") < row.index("507 us") < row.index("500 us")


@pytest.mark.parametrize(("direction", "thing"), [("rx", "message"), ("request", "request")])
def test_page_names_what_is_diagnosed(tmp_path: Path, direction: str, thing: str) -> None:
    capture = nsight_report.open(
        write_capture(tmp_path / "a.nsight", Answering(), direction=direction), direction=direction
    )
    page = render(Sheet.of(capture, summarise(capture)), [], 0)
    assert f'<body data-thing="{thing}">' in page
    assert f"What delayed the slow {thing}s?" in page
    assert f"2,000 {thing}s" in page
    assert f'<h2 id="explore">Slow {thing}s</h2>' in page


def test_figures_name_what_is_diagnosed(tmp_path: Path) -> None:
    capture = nsight_report.open(
        write_capture(tmp_path / "a.nsight", Answering(), direction="request"), direction="request"
    )
    made = drawn(Sheet.of(capture, summarise(capture)))
    texts = {figure.name: figure.title + figure.alt + figure.caption + figure.svg.decode() for figure in made}
    assert {"balloon", "causes", "cdf"} <= texts.keys()
    for text in texts.values():
        assert "slow request" in text or "requests" in text
        assert "message" not in text


def test_what_waits_for_others_is_a_request_where_requests_are_diagnosed(tmp_path: Path) -> None:
    c = nsight_report.open(
        write_capture(tmp_path / "a.nsight", Answering(), direction="request"), direction="request"
    )
    summarise(c)  # reads the tables; then one is replaced
    c._frames["hol"] = to_pandas(blocking_of(1900, Locks=(9000, 500)))
    out = io.StringIO()
    print_summary(c, summarise(c), out)
    assert "what the requests ahead did meanwhile" in out.getvalue()
    page = write_report(c, summarise(c), tmp_path / "report").read_text()
    table_of_it = page.split('<table id="blocking"')[1].split("</p>")[0]
    assert "requests that waited" in table_of_it
    assert "message" not in table_of_it


def test_show_names_the_request_of_a_message(answering: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "request 1900, received: 507 us (receive 1.00 us, queue 2.00 us, service 500 us, transmit 4.00 us), reply from message 1900 on"
        in said(capsys, "show", answering, "1900")
    )
