# SPDX-License-Identifier: GPL-2.0-only
"""The terminal summary and the HTML page: what they say, and that names cannot do harm."""

from __future__ import annotations

import base64
import html.parser
import io
import re
from pathlib import Path

import nsight_report
import pytest
from nsight_report.api import Capture
from nsight_report.export.html import render
from nsight_report.export.terminal import print_summary
from nsight_report.plots.figures import draw
from nsight_report.summary import summarise

from .conftest import Run
from .synthetic import World, write_capture

HOSTILE = '<script>alert("x")</script>'


def page_of(capture: Capture) -> str:
    summary = summarise(capture)
    return render(capture, summary, draw(capture, summary))


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
    """A capture whose threads have names that mean something to a browser, rich and a terminal."""
    path = tmp_path_factory.mktemp("h") / "a<b>.nsight"
    return nsight_report.open(write_capture(path, World(n=300, app="[red]x\x1b[31m", hog=HOSTILE)))


@pytest.fixture(scope="module")
def hostile_page(hostile: Capture) -> str:
    return page_of(hostile)


def test_page_has_no_script_whatever_threads_are_called(hostile_page: str) -> None:
    page = Page(hostile_page)
    assert not [tag for tag, _ in page.tags if tag in ("script", "iframe", "object", "link", "b")]
    assert HOSTILE in page.words  # as text: the parser has undone the escaping
    assert "<script>" not in hostile_page
    assert "\x1b" not in hostile_page


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
            assert (attrs.get(name) or "data:").startswith("data:"), (tag, attrs)
    assert "url(" not in hostile_page
    assert "@import" not in hostile_page


def test_embedded_pictures_hold_no_script_and_no_reference(hostile_page: str) -> None:
    pictures = [a["src"] or "" for tag, a in Page(hostile_page).tags if tag == "img"]
    assert len(pictures) >= 4
    for source in pictures:
        svg = base64.b64decode(source.split(",", 1)[1]).decode()
        assert "<script" not in svg
        assert not re.search(r'href="(?!#|data:)', svg)


def test_page_puts_words_before_pictures(hostile_page: str) -> None:
    order = [
        hostile_page.index(f'id="{name}"')
        for name in ("losses", "messages", "causes", "figures", "slowest", "grade", "host")
    ]
    assert order == sorted(order)
    assert hostile_page.index('class="verdict"') < order[0]


def test_every_picture_has_a_text_and_a_caption(hostile_page: str) -> None:
    page = Page(hostile_page)
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert all(len(a.get("alt") or "") > 40 for a in images)
    assert sum(tag == "figcaption" for tag, _ in page.tags) == len(images)


def test_page_says_what_the_capture_holds(capture: Path) -> None:
    words = " ".join(Page(page_of(nsight_report.open(capture))).words.split())
    assert "Of 2,000 messages, the 20 of p99-100 were compared with those of p25-75." in words
    assert "hog (A) (99% of the extra latency, 20 messages, up to 995 us)" in words
    assert "read without arrival (3)" in words
    assert "pin it to another core" in words
    assert "Too few messages for p99.9, p99.99." in words
    assert "nsight-record -d 1 --port 11211" in words
    assert "Functions inside the application and the kernel are not seen" in words


def test_terminal_shows_names_as_they_are_and_no_escape(hostile: Capture) -> None:
    out = io.StringIO()
    print_summary(hostile, summarise(hostile), out)
    text = out.getvalue()
    assert "\x1b" not in text  # neither colour (this is no terminal) nor the thread's own
    assert "[red]x\\x1b[31m" in text
    assert HOSTILE in text


def test_losses_come_before_the_results(run: Run, capture: Path) -> None:
    text = run(capture).stdout
    places = [
        text.index(word)
        for word in ("What it cannot see", "Lost, rejected", "Messages: 2,000", "Causes of", "Slowest")
    ]
    assert places == sorted(places)
    assert "warning: messages: read without arrival: 3." in text


def test_terminal_names_causes_shares_and_the_slowest_message(run: Run, capture: Path) -> None:
    text = run(capture).stdout
    assert re.search(r"hog \(A\) +99% +#{20} +20 +895 us +995 us +18.6 ms", text)
    assert "message 200: 1.01 ms (usual 10.0 us)" in text
    assert "hog (A) +995 us" in text


def test_messages_delayed_together_are_shown_once(capture: Path) -> None:
    slow = summarise(nsight_report.open(capture)).slowest
    # Of 200, 201 and 202, which wait for one hog, only the slowest (200) is taken.
    assert [int(s.row["message_id"]) for s in slow] == [200, 400, 600, 800, 1000]


def test_help_documents_every_exit_code(run: Run) -> None:
    from nsight_report import cli, errors

    text = run("--help").stdout
    codes = [cli.EXIT_INTERNAL] + [getattr(errors, name) for name in dir(errors) if name.startswith("EXIT_")]
    documented = {int(n) for n in re.findall(r"^  (\d+) +\S", text.split("exit codes:")[1], re.MULTILINE)}
    assert documented == set(codes)


def test_stage_names_of_the_command_line_are_the_pipelines() -> None:
    from nsight_report import cli, stages

    assert list(cli._STAGES) == [stage.name for stage in stages.STAGES]
