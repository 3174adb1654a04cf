# SPDX-License-Identifier: GPL-2.0-only
"""The terminal summary and the HTML page: their contents, and that names can do no harm."""

from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote

import nsight_report
import pandas as pd
import pyarrow.parquet as pq
import pytest
from machinery.made_up.capture import World, blocking_of, write_capture
from nsight_report.api import Capture
from nsight_report.export import tables
from nsight_report.export.html import render, write_report
from nsight_report.export.terminal import print_summary
from nsight_report.plots.figures import Sheet, csv_text, drawn
from nsight_report.report_text import confidence
from nsight_report.summary import summarise
from nsight_report.tables.data_frames import to_pandas

from .conftest import Run

HOSTILE = '<script>alert("x")</script>'


def page_of(capture: Capture) -> str:
    sheet = Sheet.of(capture, summarise(capture))
    return render(sheet, drawn(sheet))


class Page(html.parser.HTMLParser):
    """Collects tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A capture whose threads have names with a meaning for a browser, for rich and for a terminal."""
    path = tmp_path_factory.mktemp("h") / "a<b>.nsight"
    return nsight_report.open(write_capture(path, World(n=300, app="[red]x\x1b[31m", hog=HOSTILE)))


@pytest.fixture(scope="module")
def hostile_page(hostile: Capture) -> str:
    return page_of(hostile)


def test_page_has_only_the_packages_scripts_whatever_threads_are_called(hostile_page: str) -> None:
    page = Page(hostile_page)
    assert not [tag for tag, _ in page.tags if tag in ("iframe", "object", "link", "b")]
    assert HOSTILE in page.words  # as text: the parser has undone the escaping
    assert "<script>alert" not in hostile_page
    assert "\x1b" not in hostile_page
    bodies = re.findall(r"<script>(.*?)</script>", hostile_page, re.DOTALL)
    assert [hashlib.sha256(b.encode()).digest() for b in bodies] == [
        base64.b64decode(h) for h in re.findall(r"script-src (.*?);", html.unescape(hostile_page))[0].replace("'sha256-", "").replace("'", "").split()
    ]  # fmt: skip
    assert len(bodies) == 6


def test_no_control_character_of_a_cause_is_in_the_page_or_in_csv(tmp_path: Path) -> None:
    name, shown = "x\x1b]0;t\x07\u202e", "x\\x1b]0;t\\x07\\u202e"
    c = nsight_report.open(write_capture(tmp_path / "c.nsight", World(n=300, hog=name)))
    page = page_of(c)
    assert f"Largest causes: {shown} (A)" in html.unescape(page)
    assert not set("\x1b\x07\u202e") & set(page)
    assert csv_text(pd.DataFrame({"cause": [name, None], "n": [1, 2]})) == f"cause,n\n{shown},1\n,2\n"
    for kind in ("csv", "parquet"):
        tables.export(c, kind, tmp_path, ["anomalies"])
    assert name in pq.read_table(tmp_path / "anomalies.parquet")["subject"].to_pylist()
    written = pd.read_csv(tmp_path / "anomalies.csv")["subject"]
    assert shown in set(written) and name not in set(written)


def test_policy_allows_styles_by_their_hash_and_none_in_attributes(hostile_page: str) -> None:
    styles = re.findall(r"<style>(.*?)</style>", hostile_page, re.DOTALL)
    allowed = re.findall(r"style-src (.*?);", html.unescape(hostile_page))[0]
    assert "unsafe" not in allowed
    assert len(styles) == 3
    for text in styles:
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in allowed
    assert not [tag for tag, attrs in Page(hostile_page).tags if "style" in attrs]
    assert not [name for _, attrs in Page(hostile_page).tags for name in attrs if name.startswith("on")]


def test_data_in_the_page_cannot_end_its_element(hostile_page: str) -> None:
    data = re.findall(r'<script type="application/json" id="[\w-]+">(.*?)</script>', hostile_page, re.DOTALL)
    assert len(data) >= 2
    for text in data:
        assert not set("<>&") & set(text)
        json.loads(text)
    assert any(
        HOSTILE in json.dumps(json.loads(text), ensure_ascii=False).replace('\\"', '"') for text in data
    )


def test_page_attributes_are_escaped(hostile_page: str) -> None:
    alts = [attrs.get("alt") or "" for tag, attrs in Page(hostile_page).tags if tag == "img"]
    assert any(HOSTILE in alt for alt in alts)


def test_page_needs_nothing_from_outside(hostile_page: str) -> None:
    page = Page(hostile_page)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for tag, attrs in page.tags:
        for name in ("src", "href", "data", "action", "srcset"):
            assert (attrs.get(name) or "data:").startswith(("data:", "#")), (tag, attrs)
    own = re.sub(r'src="data:[^"]*"', "", hostile_page)  # pictures are tested below
    assert "url(" not in own
    assert "@import" not in own


def test_embedded_pictures_hold_no_script_and_no_baseline(hostile_page: str) -> None:
    pictures = [a["src"] or "" for tag, a in Page(hostile_page).tags if tag == "img"]
    assert len(pictures) >= 4
    for source in pictures:
        svg = unquote(source.removeprefix("data:image/svg+xml,"))
        assert svg.startswith("<svg ") and "<script" not in svg and "@import" not in svg
        assert not re.search(r'href="(?!#|data:)|url\((?!#)', svg)


def test_page_puts_words_before_pictures(hostile_page: str) -> None:
    order = [
        hostile_page.index(f'id="{name}"')
        for name in ("summary", "losses", "explore", "causes", "spread", "figures", "mode", "host")
    ]
    assert order == sorted(order)
    questions = [
        hostile_page.index(q) for q in ("What delayed", "By how much?", "Confidence", "What to do next")
    ]
    assert order[0] < questions[0] < questions[1] < questions[2] < questions[3] < order[1]


def test_every_picture_has_a_text_and_a_caption(hostile_page: str) -> None:
    page = Page(hostile_page)
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert all(len(a.get("alt") or "") > 40 for a in images)
    assert sum(tag == "figcaption" for tag, _ in page.tags) == len(images)


def test_page_says_what_the_capture_holds(capture: Path) -> None:
    c = nsight_report.open(capture)
    words = " ".join(Page(page_of(c)).words.split())
    assert "Of 2,000 messages, the 20 of p99-100 were compared with those of p25-75." in words
    # With the same confidence as on the terminal.
    assert len(confidence(summarise(c))) > 1 and " ".join(confidence(summarise(c))) in words
    assert "hog (A) 99% 20 messages, up to 995 us" in words
    assert "read without arrival (3)" in words
    assert "pin it to another core" in words
    assert "Too few messages for p99.9, p99.99." in words
    assert "nsight-record -d 1 --port 11211" in words
    assert "Functions inside the application and the kernel are not seen" in words


def test_terminal_shows_names_as_they_are_and_no_escape(hostile: Capture) -> None:
    out = io.StringIO()
    print_summary(hostile, summarise(hostile), out)
    text = out.getvalue()
    assert "\x1b" not in text  # no colour (this is not a terminal), and no escape sequence of the thread name
    assert "[red]x\\x1b[31m" in text
    assert HOSTILE in text


def test_losses_come_before_the_results(run: Run, capture: Path) -> None:
    text = run(capture).stdout
    places = [
        text.index(word)
        for word in (
            "Limitations of this recording",
            "Data quality",
            "Messages: 2,000",
            "Causes of",
            "Slowest",
        )
    ]
    assert places == sorted(places)
    assert "warning: messages: read without arrival: 3." in text


def test_terminal_names_causes_shares_and_the_slowest_message(run: Run, capture: Path) -> None:
    text = run(capture).stdout
    assert re.search(r"hog \(A\) +99% +#{20} +20 +895 us +995 us +18.6 ms", text)
    assert "message 200: 1.01 ms (usual 10.0 us)" in text
    assert "hog (A) +995 us" in text


def test_causes_that_are_only_places_are_marked_and_told_apart(capture: Path) -> None:
    c = nsight_report.open(capture)
    assert "not why" not in told(c)
    half = c.coverage["explained_ns"] // 2
    c._frames["coverage"] = c.coverage.assign(
        explained_ns=half, located_ns=half, coverage=half / c.coverage["deviation_ns"]
    )
    c._frames["causes"] = c.causes.assign(
        located_ns=c.causes["total_deviation_ns"].where(c.causes["category"] == "hog", 0)
    )
    text = told(c)
    assert re.search(
        r"The causes explain (49|50)% of the extra latency; for (49|50)% they show where the time went, but not why",
        text,
    )
    assert re.search(
        r"What delayed them most: hog \(A\) \(only located: 99% of the extra latency, 20 messages", text
    )
    assert "hog (A) *" in text
    assert "Head-of-line blocking (A) *" not in text
    assert "* tells where the time went, and not why" in text


def quiet(capture: Path, ns: int, slower: int) -> Capture:
    """The capture (20 slow messages): ``slower`` of them are ``ns`` above the baseline due to one cause, the others 200 ns."""
    c = nsight_report.open(capture)
    coverage = c.coverage.assign(deviation_ns=200, explained_ns=200, coverage=1.0)
    coverage.loc[coverage.index[:slower], ["deviation_ns", "explained_ns"]] = ns
    c._frames["coverage"] = coverage
    c._frames["causes"] = c.causes.head(1).assign(
        n_messages=max(slower, 1),
        share=1.0,
        total_deviation_ns=ns * max(slower, 1),
        max_deviation_ns=ns,
        median_deviation_ns=ns,
    )
    return c


def told(c: Capture) -> str:
    out = io.StringIO()
    print_summary(c, summarise(c), out)
    return " ".join(out.getvalue().split())


def test_what_is_not_slower_has_nothing_explained_and_no_advice(capture: Path) -> None:
    c = quiet(capture, 900, 20)  # 900 ns: mode tracepoints resolves 1 us
    c._frames["causes"] = c.causes.iloc[:0]
    text = told(c)
    assert (
        "None of them took longer by more than this recording can tell from nothing (about 1.00 us)." in text
    )
    assert "coverage: undefined" in text
    assert "none: no message was slower by more than measurement noise" in text
    assert "What to do: - Nothing." in text
    assert "100%" not in text.partition("Slowest messages")[0]
    page = " ".join(Page(page_of(c)).words.split())
    assert "None of them took longer by more than this recording can tell" in page
    assert "100% of the extra latency" not in page
    assert "add 0 ns" not in page


def test_where_the_clocks_are_what_hides_differences_the_words_say_so(capture: Path) -> None:
    c = quiet(capture, 160_000, 20)
    c.coverage["noise_ns"] = 2_540_000
    c._frames["causes"] = c.causes.iloc[:0]
    text = told(c)
    assert "can tell from nothing (about 2.54 ms, since its clocks are known to 1.27 ms only)." in text
    assert "What to do: - Record again while the machine is less busy" in text


def test_a_lone_small_cause_stands_with_its_size_and_with_how_many_were_slower(capture: Path) -> None:
    text = told(quiet(capture, 1400, 1))
    # 19 messages by 200 ns and one by 1.4 us.
    assert (
        "Only 1 of them took longer by more than this recording can tell (about 1.00 us). What delayed these most: hog (A) "
        "(100% of the extra latency" in text
    )
    assert "of the extra latency of 1.40 us in all, 1 message, up to 1.40 us)" in text
    assert "shares are of 1.40 us, the extra latency of the slower ones in all" in text
    # Coverage counts only slower messages, not those with nothing to explain.
    c = quiet(capture, 1400, 1)
    c.coverage.loc[c.coverage.index[0], "coverage"] = 0.5
    of = summarise(c).covered
    assert of is not None
    assert of.median == 0.5


def test_it_is_told_when_only_system_calls_that_waited_were_recorded(capture: Path) -> None:
    c = quiet(capture, 5_000, 20)
    assert "--syscalls messages" not in told(c)
    c.manifest.raw["syscalls"] = "waits"
    assert "System calls are seen where a thread waited in one" in told(c)


@pytest.mark.parametrize(("pmu", "n"), [(False, 1), (True, 0), (None, 0), (0, 0)])
def test_a_machine_without_hardware_counters_is_told_once(capture: Path, pmu: object, n: int) -> None:
    c = quiet(capture, 5_000, 20)
    c.manifest.raw["host"]["pmu"] = pmu
    assert told(c).count("hardware counters") == n


def test_a_delay_that_most_have_is_told_as_before(capture: Path) -> None:
    text = told(quiet(capture, 5_000, 20))
    assert (
        "of p25-75. What delayed them most: hog (A) (100% of the extra latency, 20 messages, up to 5.00 us)."
        in text
    )
    assert "The causes explain 100% of the extra latency." in text


def test_messages_delayed_together_are_shown_once(capture: Path) -> None:
    slow = summarise(nsight_report.open(capture)).slowest
    # 200, 201 and 202 wait for the same hog; only the slowest (200) is selected.
    assert [int(s.row["message_id"]) for s in slow] == [200, 400, 600, 800, 1000]


def test_help_documents_every_exit_code(run: Run) -> None:
    from nsight_report import cli, errors

    text = run("--help").stdout
    codes = [cli.EXIT_INTERNAL] + [getattr(errors, name) for name in dir(errors) if name.startswith("EXIT_")]
    documented = {int(n) for n in re.findall(r"^  (\d+) +\S", text.split("exit codes:")[1], re.MULTILINE)}
    assert documented == set(codes)


def test_stage_names_of_the_command_line_are_the_pipelines(run: Run) -> None:
    from nsight_report import stages

    assert f"stages, in order: {', '.join(stages.BY_NAME)}\n" in run("--help").stdout
    wrong = run("x.nsight", "--stage", "nothing")
    assert wrong.returncode == 2
    assert all(f"'{name}'" in wrong.stderr for name in stages.BY_NAME)


def test_dropped_packets_stand_in_terminal_and_page(capture: Path, tmp_path: Path) -> None:
    c = nsight_report.open(capture)
    proto, port = (int(c.messages[name].iloc[0]) for name in ("proto", "lport"))
    row = {
        "ts_ns": 1,
        "cpu": 0,
        "reason": "SOCKET_RCVBUFF<b>",
        "proto": proto,
        "sport": 9,
        "dport": port,
        "saddr": "10.0.0.2",
        "daddr": "10.0.0.1",
        "nbytes": 60,
    }
    c._frames["drops"] = pd.DataFrame([row, row, {**row, "dport": port + 1}])
    summary = summarise(c)
    out = io.StringIO()
    print_summary(c, summary, out)
    line = f"2 packets to TCP port {port}: SOCKET_RCVBUFF<b>; from 10.0.0.2:9 to 10.0.0.1:{port}"
    assert line in " ".join(out.getvalue().split())
    page = write_report(c, summary, tmp_path / "report").read_text()
    assert line.replace("<b>", "&lt;b&gt;") in page
    assert line not in page


def test_head_of_line_blocking_shows_the_last_callers_of_a_function(capture: Path) -> None:
    c = nsight_report.open(capture)
    summarise(c)  # reads the tables; then one is replaced
    c._frames["hol"] = to_pandas(blocking_of(201, Locks=(9000, 500)))
    out = io.StringIO()
    print_summary(c, summarise(c), out)
    words = " ".join(out.getvalue().split())
    assert "in ... > loop > serve > lookup > do Locks" in words
    assert "main >" not in words
