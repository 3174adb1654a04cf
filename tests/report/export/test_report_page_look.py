# SPDX-License-Identifier: GPL-2.0-only
"""Look and use of the page: first screen, light and dark, axis titles, sortable tables, a message beside the chart."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nsight_report
import numpy as np
import pandas as pd
import pytest
from machinery.made_up.capture import START, World, manifest, write_capture
from matplotlib.colors import to_rgb
from nsight_report.api import Capture
from nsight_report.export import html, theme
from nsight_report.plots import style
from nsight_report.plots.figures import Sheet
from nsight_report.summary import summarise
from PIL import Image

from . import browser as browsers
from .pages import click_balloon, keys, load, run, shows, text, waits_for

pytestmark = pytest.mark.tools

ADVICE = "The application's own work around this message took longer: profile it (perf record -g on its pid), or record with Intel PT to see which function."
# By share, name, messages, median and total: each order differs, and none is the order of the displayed texts.
CAUSES = (("b10", 0.5, 9, 900, 2_000_000), ("b9", 0.3, 30, 30_000, 9_000), ("Zoo", 0.15, 200, 4_000, 150_000),
          ("alpha", 0.004, 4, 1_000_000, 30_000), ("mu", 0.001, 1, 50, 800))  # fmt: skip


@pytest.fixture(scope="module")
def causes_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five causes, three of which come with two lines of advice."""
    directory = tmp_path_factory.mktemp("causes")
    c = nsight_report.open(write_capture(directory / "c.nsight", World(n=400)))
    return page_of_causes(c, directory / "c.html", CAUSES)


def page_of_causes(c: Capture, path: Path, causes: Iterable[tuple[str, float, int, int, int]]) -> Path:
    """The page of ``c`` with these causes: name, share, messages, median and total of each."""
    one = c.causes.iloc[:1]
    made = [
        one.assign(cause=f"{name} (A)", category=name, subject=name, share=share, n_messages=n, median_deviation_ns=median,
                   max_deviation_ns=2 * median, total_deviation_ns=total, advice=f"{name}: {ADVICE}")
        for name, share, n, median, total in causes
    ]  # fmt: skip
    c._frames["causes"] = pd.concat(made, ignore_index=True)
    path.write_text(html.render(Sheet.of(c, summarise(c)), []))
    return path


@contextmanager
def media(driver: Any, scheme: str, kind: str = "") -> Iterator[None]:
    """A dark or light screen, or paper for a user with such a screen."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def box(driver: Any, selector: str) -> dict[str, float]:
    found: dict[str, float] = run(
        driver, f"return document.querySelector({selector!r}).getBoundingClientRect().toJSON()"
    )
    assert found["width"] > 0 and found["height"] > 0, selector
    return found


def window(driver: Any, page: Path, width: int, height: int) -> None:
    load(driver, page, width)
    browsers.resize(driver, width, height)
    run(driver, "scrollTo(0, 0); return new Promise(done => setTimeout(done, 200))")


# --- the first screen


def test_header_has_host_time_mode_and_workload(browser: Any, tmp_path: Path) -> None:
    times = {
        "start": {"monotonic_ns": START, "realtime_ns": 1_700_000_000_000_000_000},
        "stop": {"monotonic_ns": START + 2_500_000_000},
    }
    capture = write_capture(tmp_path / "h.nsight", World(n=300), told=manifest(**times))
    c = nsight_report.open(capture)
    (tmp_path / "h.html").write_text(html.render(Sheet.of(c, summarise(c)), []))
    load(browser, tmp_path / "h.html")
    found = "return Object.fromEntries([...document.querySelectorAll('header .facts div')].map(d => [...d.children].map(e => e.textContent)))"
    assert run(browser, found) == {
        "Host": "db7, kernel 6.12.1, 2 cores",
        "Recorded": "2023-11-14 22:13:20 UTC, 2.50 s",
        "Mode": "tracepoints",
        "Workload": "mc-worker, port 11211, 300 messages",
    }


def test_header_leaves_out_what_a_recorder_did_not_say(tmp_path: Path) -> None:
    told = manifest(host={}, start={}, stop={})
    c = nsight_report.open(write_capture(tmp_path / "h.nsight", World(n=300), told=told))
    header = html.render(Sheet.of(c, summarise(c)), []).partition("<header>")[2].partition("</header>")[0]
    assert "<dt>Mode</dt>" in header
    assert "<dt>Host</dt>" not in header
    assert "<dt>Recorded</dt>" not in header


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 causes with names as long as those of kernel threads, on a host with a long name."""
    directory = tmp_path_factory.mktemp("long")
    host = {"hostname": "ip-10-123-234-234.eu-central-1.compute.internal.example.com", "kernel": "6.12.1-cloud-amd64-long-suffix",
            "n_cpus": 384}  # fmt: skip
    told = manifest(host=host, start={"monotonic_ns": START, "realtime_ns": 1_700_000_000_000_000_000})
    c = nsight_report.open(write_capture(directory / "c.nsight", World(n=400, app="W" * 15), told=told))
    names = [f"kubernetes-sidecar-proxy-{i:03d}/worker<{i}>" for i in range(300)]
    causes = [(name, 0.16 / (1 + i), 20, 90_000 - i, 900_000 - i) for i, name in enumerate(names)]
    return page_of_causes(c, directory / "long.html", causes)


@pytest.mark.parametrize("which", ["causes_page", "long_page"])
def test_four_answers_are_on_the_first_screen_of_a_laptop(
    browser: Any, which: str, request: pytest.FixtureRequest
) -> None:
    window(browser, request.getfixturevalue(which), 1280, 720)
    order = run(
        browser, "return [...document.querySelectorAll('.answers > div > dt')].map(d => d.textContent)"
    )
    assert order == [
        "What delayed the slow messages?",
        "By how much?",
        "Confidence",
        "What to do next",
    ]
    answers = [box(browser, f".answers > .{kind}") for kind in ("what", "much", "sure", "next")]
    assert max(b["bottom"] for b in answers) <= 720
    assert max(b["right"] for b in answers) <= 1280
    for one, other in itertools.combinations(answers, 2):  # none covers another
        assert (
            one["right"] <= other["left"] or other["right"] <= one["left"]
            or one["bottom"] <= other["top"] or other["bottom"] <= one["top"]
        )  # fmt: skip
    assert box(browser, ".facts")["bottom"] <= answers[0]["top"]


def test_bars_have_the_length_of_the_shares_and_say_how_many_messages(
    browser: Any, causes_page: Path
) -> None:
    window(browser, causes_page, 1280, 720)
    drawn = "return [...document.querySelectorAll('.bars li')].map(li => [+li.querySelector('rect').getAttribute('width'), li.querySelector('.told').textContent])"
    assert run(browser, drawn) == [
        [50, "9 messages, up to 1.80 us"],
        [30, "30 messages, up to 60.0 us"],
        [15, "200 messages, up to 8.00 us"],
        [0.4, "4 messages, up to 2.00 ms"],
    ]


def test_link_of_the_first_screen_opens_the_slowest_message(opened: Any) -> None:
    opened.find_element("css selector", ".answers .next a").click()
    shows(opened, 200)  # the first message that the hog delays, for 1.01 ms


def test_first_screen_says_where_nothing_was_slower(browser: Any, tmp_path: Path) -> None:
    c = nsight_report.open(write_capture(tmp_path / "n.nsight", World(n=400)))
    c._frames["coverage"] = c.coverage.assign(deviation_ns=200, explained_ns=200, coverage=1.0)
    for name in ("causes", "anomalies"):
        c._frames[name] = getattr(c, name).iloc[:0]
    (tmp_path / "n.html").write_text(html.render(Sheet.of(c, summarise(c)), []))
    window(browser, tmp_path / "n.html", 1280, 720)
    assert "None of them took longer" in text(browser, ".answers .what")
    assert "extra" not in text(browser, ".answers .much")
    assert "1 warning" in text(browser, ".answers .sure")
    assert "Nothing." in text(browser, ".answers .next")
    assert box(browser, ".answers")["bottom"] <= 720


def test_a_cause_that_is_only_a_place_is_marked(browser: Any, tmp_path: Path) -> None:
    c = nsight_report.open(write_capture(tmp_path / "p.nsight", World(n=400)))
    c._frames["causes"] = c.causes.assign(
        located_ns=c.causes["total_deviation_ns"].where(c.causes["category"] == "hog", 0)
    )
    (tmp_path / "p.html").write_text(html.render(Sheet.of(c, summarise(c)), []))
    load(browser, tmp_path / "p.html")
    names = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())"
    assert browser.execute_script(names, ".bars .cause")[0] == "hog (A) *"
    assert browser.execute_script(names, "#cause-table .name")[0] == "hog (A) *"
    assert len([n for n in browser.execute_script(names, "#cause-table .name") if n.endswith("*")]) == 1
    assert "*: where the time went, but not why" in text(browser, ".answers .what")


# --- light and dark


# Each text with its colour and its background: the first background behind it that is not transparent.
PAINTED = """
const found = [], seen = new Set();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
	const e = walker.currentNode.parentElement;
	if (!walker.currentNode.textContent.trim() || seen.has(e) || !e.checkVisibility() || e.closest('svg, script, :disabled, option')) continue;
	seen.add(e);
	let at = e;
	while (at && /, 0\\)$/.test(getComputedStyle(at).backgroundColor)) at = at.parentElement;
	found.push([e.className + ' ' + e.textContent.slice(0, 40), getComputedStyle(e).color, at ? getComputedStyle(at).backgroundColor : 'none']);
}
return found;
"""


def rgb(css: str) -> tuple[float, float, float]:
    assert css.startswith("rgb("), css
    red, green, blue = (int(part) / 255 for part in css[4:-1].split(","))
    return red, green, blue


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """As defined by WCAG 2."""
    brightness = []
    for colour in (one, other):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        brightness.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(brightness) + 0.05) / (min(brightness) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(browser: Any, page: Path, scheme: str) -> None:
    with media(browser, scheme):
        load(browser, page)
        run(
            browser,
            "location.hash = '#message-1000'; document.querySelectorAll('details').forEach(d => d.open = true)",
        )
        shows(browser, 1000)
        painted = run(browser, PAINTED)
    assert len(painted) > 150
    weak = [(what, ink, paper) for what, ink, paper in painted if contrast(rgb(ink), rgb(paper)) < 4.5]
    assert weak == []


def brightness(driver: Any, selector: str) -> float:
    """Brightness of most of the image, from 0 (black) to 255."""
    run(driver, f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    run(driver, "return new Promise(done => setTimeout(done, 300))")
    area = box(driver, selector)
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {})["data"]
    picture = Image.open(io.BytesIO(base64.b64decode(shot))).convert("L")
    inside = (area["left"], max(area["top"], 60), area["right"], min(area["bottom"], 880))
    return float(np.median(np.asarray(picture.crop(tuple(map(round, inside))))))


def test_dark_screen_turns_page_charts_and_pictures_dark(browser: Any, page: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        with media(browser, scheme):
            load(browser, page)
            run(browser, "location.hash = '#message-1000'")
            shows(browser, 1000)
            seen[scheme] = [
                brightness(browser, s) for s in (".answers", "#balloon", "#lifetime", ".figures img")
            ]
    assert min(seen["light"]) > 200
    assert max(seen["dark"]) < 60


def test_chart_follows_a_screen_that_becomes_dark(browser: Any, page: Path) -> None:
    def axis() -> str:
        return str(run(browser, "return document.querySelector('#balloon').chart.axes[0].stroke()"))

    with media(browser, "light"):
        load(browser, page)
        run(
            browser,
            "window.drawn = 0; document.querySelector('#balloon').chart.hooks.draw.push(() => window.drawn++)",
        )
        light = axis()
    with media(browser, "dark"):
        waits_for(browser, lambda: bool(run(browser, "return window.drawn > 0")))
        assert axis() != light


def test_switch_turns_the_page_dark_and_is_remembered(browser: Any, page: Path) -> None:
    parts = (".answers", "#balloon", ".figures img")
    with media(browser, "light"):
        load(browser, page)
        switch = browser.find_element("id", "scheme")
        assert switch.get_attribute("aria-pressed") == "false"
        light = [brightness(browser, part) for part in parts]
        try:
            switch.click()
            assert switch.get_attribute("aria-pressed") == "true"
            assert max(brightness(browser, part) for part in parts) < 60 < 200 < min(light)
            load(browser, page)
            assert browser.find_element("id", "scheme").get_attribute("aria-pressed") == "true"
            assert brightness(browser, ".answers") < 60
            browser.find_element("id", "scheme").click()
            assert [brightness(browser, part) for part in parts] == light
        finally:
            run(browser, "localStorage.clear()")


def test_paper_is_white_whatever_the_screen(browser: Any, page: Path) -> None:
    with media(browser, "dark", "print"):
        load(browser, page)
        assert run(browser, "return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        for chosen in ("dark", "light"):  # whatever the switch is set to
            run(browser, f"document.documentElement.dataset.scheme = '{chosen}'")
            assert run(browser, "return colourOf('--paper')") == "rgb(255, 255, 255)"
            assert run(browser, "return colourOf('--c-000000')") == "rgb(0, 0, 0)"


def test_causes_on_a_dark_screen_are_seen_and_are_not_alike() -> None:
    night = {colour: to_rgb(style.at_night(colour)) for colour in style.PALETTE}
    assert min(contrast(to_rgb(style.NIGHT), colour) for colour in night.values()) >= 4.5
    day = min(_apart(to_rgb(a), to_rgb(b)) for a, b in itertools.combinations(style.PALETTE, 2))
    assert min(_apart(a, b) for a, b in itertools.combinations(night.values(), 2)) > 0.8 * day


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return float(np.linalg.norm(np.subtract(one, other)))


def test_page_and_figures_have_the_colours_of_one_place(browser: Any, page: Path) -> None:
    sheet = theme.stylesheet()
    for colour in style.PALETTE:
        assert f"--c-{colour[1:]}:light-dark({colour},{style.at_night(colour)});" in sheet
    load(browser, page)
    drawn = run(
        browser,
        "return [...document.querySelectorAll('#cause-table tbody tr')].map(r => [r.dataset.cause, getComputedStyle(r.querySelector('.icon polygon')).fill])",
    )
    looks = style.looks(["hog (A)", "Head-of-line blocking (A)"])
    assert {name: tuple(round(255 * c) for c in rgb(fill)) for name, fill in drawn} == {
        name: tuple(round(255 * c) for c in to_rgb(look.colour)) for name, look in looks.items()
    }


# --- axes


def test_both_axes_of_every_chart_have_a_title(opened: Any) -> None:
    run(opened, "location.hash = '#message-1000'")
    shows(opened, 1000)
    titles = "return document.querySelector(arguments[0]).chart.axes.map(a => a.label)"
    assert opened.execute_script(titles, "#balloon") == ["message, in order of arrival", "latency"]
    assert opened.execute_script(titles, "#distribution") == ["latency", "messages at least as slow"]
    across, up, drawing = (box(opened, css) for css in (".axis-x", ".axis-y", "#lifetime svg"))
    assert text(opened, ".axis-x") == "time since the first timestamp"
    assert across["top"] >= drawing["bottom"] - 1
    assert text(opened, ".axis-y") == "core"
    assert up["right"] <= drawing["left"] + 1
    # Box plots of the table: their axis is in the heading, at the same positions.
    assert text(opened, "#cause-table th.box").startswith("latency added to each message")
    head, plot = (box(opened, f"#cause-table {css} svg") for css in ("th.box", "td.box"))
    assert (head["left"], head["width"]) == (plot["left"], plot["width"])
    assert len(opened.find_elements("css selector", ".box-axis text")) >= 2


# --- tables


def column(driver: Any, table: str, heading: str) -> tuple[int, Any]:
    """Its number, and its button."""
    buttons = driver.find_elements("css selector", f"{table} th button")
    names = [b.get_attribute("textContent") for b in buttons]
    return names.index(heading), buttons[names.index(heading)]


def names_by(driver: Any, table: str, heading: str) -> tuple[list[str], str]:
    """First words of the first column after a click on ``heading``, and the sort order that a screen reader gets."""
    _, button = column(driver, table, heading)
    run(driver, f"document.querySelector({table!r}).scrollIntoView({{block: 'center'}})")
    button.click()
    rows = run(
        driver,
        f"return [...document.querySelectorAll('{table} tbody tr')].map(r => r.cells[0].textContent.trim().split(' ')[0])",
    )
    told = run(
        driver,
        f"return [...document.querySelectorAll('{table} th[aria-sort]')].map(h => h.textContent + ' ' + h.ariaSort)",
    )
    assert len(told) == 1
    assert told[0].startswith(heading)
    return rows, told[0].rpartition(" ")[2]


@pytest.mark.parametrize(
    ("heading", "place"), [("share of the delay", 1), ("messages", 2), ("median", 3), ("total", 4)]
)
def test_causes_sort_by_number_and_back(browser: Any, causes_page: Path, heading: str, place: int) -> None:
    load(browser, causes_page)
    largest = [str(cause[0]) for cause in sorted(CAUSES, key=lambda cause: -float(cause[place]))]
    first, other = ("ascending", "descending") if place == 1 else ("descending", "ascending")
    for way in (first, other):  # the page is initially sorted by share
        rows, told = names_by(browser, "#cause-table", heading)
        assert told == way
        assert rows == (largest if way == "descending" else largest[::-1])
    assert text(browser, "#status") == f"sorted by {heading}, {other}"


def test_table_of_many_causes_is_folded_and_sorts_all_of_them(browser: Any, long_page: Path) -> None:
    def seen() -> list[str]:
        return [
            str(name)
            for name in run(
                browser,
                "return [...document.querySelectorAll('#cause-table tbody tr')].filter(r => r.checkVisibility()).map(r => r.dataset.cause)",
            )
        ]

    load(browser, long_page)
    assert len(seen()) == 20
    assert names_by(browser, "#cause-table", "cause")[1] == "ascending"
    names_by(browser, "#cause-table", "cause")
    assert seen()[0] == "kubernetes-sidecar-proxy-299/worker<299> (A)"
    browser.find_element("id", "unfold").click()
    assert len(seen()) == 300


def test_table_sorts_by_keys_and_the_focus_stays(browser: Any, causes_page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    load(browser, causes_page)
    run(browser, "document.querySelector('#cause-table th button').focus()")
    keys(browser, Keys.TAB, Keys.TAB, Keys.ENTER)  # cause, share of the delay, messages
    first = "return document.querySelector('#cause-table tbody tr').dataset.cause"
    told = "return [document.activeElement.closest('th').ariaSort, document.activeElement.textContent]"
    assert (run(browser, first), run(browser, told)) == ("Zoo (A)", ["descending", "messages"])
    keys(browser, Keys.SPACE)
    assert (run(browser, first), run(browser, told)) == ("mu (A)", ["ascending", "messages"])


def test_causes_sort_by_name(browser: Any, causes_page: Path) -> None:
    load(browser, causes_page)
    names = ["alpha", "b9", "b10", "mu", "Zoo"]  # natural order: neither by code point nor digit by digit
    assert names_by(browser, "#cause-table", "cause") == (names, "ascending")
    assert names_by(browser, "#cause-table", "cause") == (names[::-1], "descending")


def test_slow_messages_sort_over_all_pages(opened: Any) -> None:
    def listed() -> list[int]:
        return [
            int(n)
            for n in run(
                opened, "return [...document.querySelectorAll('#list tbody button')].map(b => b.textContent)"
            )
        ]

    def click(heading: str) -> None:
        run(opened, "document.querySelector('#list').scrollIntoView({block: 'center'})")
        column(opened, "#list", heading)[1].click()

    def latency() -> str:
        return str(run(opened, "return document.querySelector('#list tbody tr').cells[1].textContent"))

    every = sorted(
        run(opened, "return JSON.parse(document.querySelector('#data').textContent).slow.map(t => t.id)")
    )
    assert len(every) == 20  # more than one page of the list
    click("message ID")
    assert listed() == every[:-13:-1]
    click("message ID")
    assert listed() == every[:12]
    click("latency")
    assert latency() == "1.01 ms"  # the first message of those that waited for the hog
    click("latency")
    assert latency() != "1.01 ms"
    assert run(opened, "return document.querySelector('#list th[aria-sort]').ariaSort") == "ascending"


def test_every_table_sorts_and_its_buttons_have_names(browser: Any, page: Path) -> None:
    load(browser, page)
    run(
        browser,
        "document.querySelectorAll('details').forEach(d => d.open = true); location.hash = '#message-1000'",
    )
    shows(browser, 1000)
    lacking = run(
        browser,
        "return [...document.querySelectorAll('table')].filter(t => !t.matches('.u-legend') && t.tBodies[0].rows.length > 1)"
        ".flatMap(t => [...t.tHead.rows[0].cells]).filter(h => !h.matches('.unsorted') && !h.querySelector('button')?.textContent)"
        ".map(h => h.outerHTML)",
    )
    assert lacking == []


# --- a message beside the chart


def test_message_opens_beside_the_chart(browser: Any, page: Path) -> None:
    window(browser, page, 1280, 800)
    address = run(browser, "return location.href.split('#')[0]")
    wide = box(browser, "#balloon")["width"]
    click_balloon(browser, 1000)
    shows(browser, 1000)
    chart, one = box(browser, "#balloon"), box(browser, "#one")
    assert chart["right"] <= one["left"]
    assert one["right"] <= 1280
    # Both are visible at the same time.
    assert chart["top"] >= 0 and chart["bottom"] <= 800
    assert one["top"] >= 0 and one["bottom"] <= 800
    assert run(browser, "return document.querySelector('#balloon canvas').clientWidth") <= chart["width"]
    assert run(browser, "return location.href.split('#')[0]") == address
    browser.find_element("id", "close").click()
    assert box(browser, "#balloon")["width"] == wide


def test_message_of_the_list_opens_where_the_reader_is(browser: Any, page: Path) -> None:
    window(browser, page, 1280, 800)
    row = browser.find_elements("css selector", "#list tbody button")[-1]
    row.click()
    shows(browser, int(row.text))
    assert 0 <= row.rect["y"] - run(browser, "return scrollY") <= 800
    one = box(browser, "#one")
    assert one["top"] >= 0 and one["bottom"] <= 800


def test_message_on_a_phone_is_shown_from_its_top(browser: Any, page: Path) -> None:
    window(browser, page, 390, 844)
    run(browser, "location.hash = '#message-1000'")
    shows(browser, 1000)
    assert 0 <= box(browser, "#one h3")["top"] < 844 / 4
    assert run(browser, "return document.documentElement.scrollWidth") == 390
    beyond = run(
        browser,
        "return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > 391"
        " && !e.closest('.wide, nav, #lifetime, .skip, .visually-hidden')).map(e => e.outerHTML.slice(0, 90))",
    )
    assert beyond == []


# --- keys


def test_focus_is_always_seen(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    run(opened, "document.activeElement.blur(); scrollTo(0, 0)")
    found = []
    for _ in range(30):
        keys(opened, Keys.TAB)
        found.append(
            run(
                opened,
                "const e = document.activeElement, s = getComputedStyle(e), b = e.getBoundingClientRect();"
                "return [s.outlineStyle, parseFloat(s.outlineWidth) >= 2, b.bottom > 0 && b.top < innerHeight, e.outerHTML.slice(0, 60)]",
            )
        )
    assert [f for f in found if f[:3] != ["solid", True, True]] == []
    assert len({f[3] for f in found}) > 20
