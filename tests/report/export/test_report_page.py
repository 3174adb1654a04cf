# SPDX-License-Identifier: GPL-2.0-only
"""The page of a report in a real browser: clicks, keys, filters, widths; nothing in its console, nothing from the network."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import nsight_report
import numpy as np
import pandas as pd
import pytest
from machinery.made_up.capture import World, blocking_of, write_capture
from nsight_report.export import html, page_data
from nsight_report.plots.figures import Sheet
from nsight_report.summary import summarise
from nsight_report.tables.data_frames import cause_names, to_pandas

from .pages import choose, click_balloon, keys, listed, load, run, shows, text, write_page

pytestmark = pytest.mark.tools

HOSTILE = '</script><img src=x onerror="document.title=1">'
VENDOR = Path(html.__file__).parent / "vendor"


# --- one message


def test_click_on_a_balloon_shows_lifetime_causes_and_call_tree(opened: Any) -> None:
    assert not opened.find_element("id", "one").is_displayed()
    click_balloon(opened, 1000)
    assert text(opened, "#one h3") == "Message 1000: 1.01 ms (usual 10.0 us)"
    assert "hog (A)" in text(opened, "#why tbody")
    assert "+995 us" in text(opened, "#why tbody")
    red = run(
        opened, "return [...document.querySelectorAll('#lifetime .box.red title')].map(t => t.textContent)"
    )
    assert len(red) == 1
    assert red[0].startswith("hog (thread): 995 us")
    marks = run(
        opened, "return [...document.querySelectorAll('#lifetime .mark-label')].map(t => t.textContent)"
    )
    assert [m.split(" +")[0] for m in marks] == ["NIC", "arrival", "hand-off", "read"]
    assert "± 200 ns" in marks[0]
    tree = text(opened, "#tree")
    # It took 995 us on the application core; baseline messages never met it.
    assert "hog 995 us, own 985 us, 1 call, usual 0 ns (+995 us)" in tree
    assert run(opened, "return location.hash") == "#message-1000"


def test_link_to_a_message_opens_it(browser: Any, page: Path) -> None:
    load(browser, page)
    run(browser, "location.hash = '#message-600'")
    shows(browser, 600)


def test_message_behind_another_links_to_it(opened: Any) -> None:
    run(opened, "location.hash = '#message-601'")
    shows(opened, 601)
    link = opened.find_element("css selector", "#why a")
    assert link.text == "message 600"
    link.click()
    shows(opened, 600)


def test_lifetime_zooms_and_tells_what_a_box_is(opened: Any) -> None:
    run(opened, "location.hash = '#message-600'")
    shows(opened, 600)
    before = run(opened, "return document.querySelector('#lifetime svg').clientWidth")
    opened.find_element("id", "zoom-in").click()
    assert run(opened, "return document.querySelector('#lifetime svg').clientWidth") == 2 * before
    run(
        opened,
        "document.querySelector('#lifetime .box.red').dispatchEvent(new MouseEvent('click', {bubbles: true}))",
    )
    assert text(opened, "#box").startswith("hog (thread): 995 us")


# --- keyboard


def test_keys_reach_a_message_and_come_back(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    run(opened, "document.querySelector('#balloon').focus()")
    keys(opened, Keys.END)
    last = text(opened, "#hover")
    keys(opened, Keys.ARROW_LEFT)
    assert text(opened, "#hover") != last
    assert text(opened, "#status") == text(opened, "#hover")  # read out by a screen reader
    number = text(opened, "#hover").split(":")[0]
    keys(opened, Keys.ENTER)
    assert text(opened, "#one h3").lower().startswith(number)
    assert run(opened, "return document.activeElement.tagName") == "H3"
    keys(opened, Keys.ESCAPE)
    assert not opened.find_element("id", "one").is_displayed()
    assert run(opened, "return document.activeElement.id") == "balloon"


def test_keys_of_the_browser_are_left_to_it(opened: Any) -> None:
    """Alt and an arrow go back in history, Ctrl and End to the end of the page."""
    taken = (
        "const e = new KeyboardEvent('keydown', {key: arguments[0], [arguments[1]]: true, cancelable: true, bubbles: true});"
        "return !document.querySelector('#balloon').dispatchEvent(e)"
    )
    assert opened.execute_script(taken, "ArrowLeft", "shiftKey")
    for modifier in ("altKey", "ctrlKey", "metaKey"):
        for key in ("ArrowLeft", "ArrowRight", "Home", "End", "Enter", " "):
            assert not opened.execute_script(taken, key, modifier), (key, modifier)


def test_message_of_a_link_leaves_the_focus_on_the_chart(browser: Any, page: Path) -> None:
    """A message opened by its address has no previous element to return the focus to."""
    from selenium.webdriver.common.keys import Keys

    browser.get("about:blank")
    browser.get(page.as_uri() + "#message-600")
    shows(browser, 600)
    keys(browser, Keys.ESCAPE)
    assert not browser.find_element("id", "one").is_displayed()
    assert run(browser, "return document.activeElement.id") == "balloon"


def test_everything_that_acts_is_reached_by_tab(opened: Any) -> None:
    skipped = run(
        opened,
        "return [...document.querySelectorAll('#filters select, button, summary, a[href], #balloon, #lifetime')]"
        ".filter(e => e.checkVisibility() && !e.disabled && e.tabIndex < 0).map(e => e.outerHTML)",
    )
    assert skipped == []


def test_list_has_every_slow_message(opened: Any) -> None:
    numbers: list[str] = []
    while True:
        numbers += run(
            opened, "return [...document.querySelectorAll('#list tbody button')].map(b => b.textContent)"
        )
        after = opened.find_element("id", "after")
        if not after.is_enabled():
            break
        after.click()
    assert len(numbers) == len(set(numbers)) == 20
    opened.find_elements("css selector", "#list tbody button")[0].click()
    assert text(opened, "#one h3").startswith("Message ")


# --- filters


def test_filters_choose_by_cause_core_and_connection(opened: Any) -> None:
    assert listed(opened) == 20
    choose(opened, "cause", "Head-of-line blocking (A)")
    assert listed(opened) == 11
    # The 20 slowest: 200, 400 ... 1800 and 201, 401 ...; the first one behind a hog waits for nothing else. conn = number % 4.
    choose(opened, "connection", "10.0.0.2:40001")
    by_both = listed(opened)
    assert 0 < by_both <= 11
    choose(opened, "cause", "every")
    choose(opened, "connection", "every")
    choose(opened, "core", "core 1")
    assert listed(opened) == 20
    opened.find_element("css selector", "#filters button[type=reset]").click()
    run(opened, "return new Promise(done => setTimeout(done, 50))")
    assert listed(opened) == 20
    assert "match" not in text(opened, "#shown")


def test_core_filter_keeps_messages_that_were_on_the_core(browser: Any, tmp_path: Path) -> None:
    c = nsight_report.open(write_capture(tmp_path / "c.nsight"))
    sheet = Sheet.of(c, summarise(c))
    number = sheet.messages["message_id"]
    # Of 20, all from core 0 to 1, one was received on core 2 and another read on core 3.
    sheet.messages = sheet.messages.assign(
        recv_cpu=sheet.messages["recv_cpu"].mask(number == 200, 2),
        app_cpu=sheet.messages["app_cpu"].mask(number == 400, 3),
    )
    (tmp_path / "c.html").write_text(html.render(sheet, []))
    load(browser, tmp_path / "c.html")
    found = {}
    for core in ("core 0", "core 1", "core 2", "core 3"):
        choose(browser, "core", core)
        found[core] = listed(browser)
    assert found == {"core 0": 19, "core 1": 19, "core 2": 1, "core 3": 1}
    assert text(browser, "#list tbody tr").startswith("400")


def test_a_balloon_that_is_filtered_out_is_not_hit(opened: Any) -> None:
    choose(opened, "connection", "10.0.0.2:40001")  # message 1000 is of 40000
    click_balloon(opened, 1000)
    assert not opened.find_element("id", "one").is_displayed() or "Message 1000:" not in text(
        opened, "#one h3"
    )


def test_what_head_of_line_blocking_consists_of_is_a_table(browser: Any, tmp_path: Path) -> None:
    c = nsight_report.open(write_capture(tmp_path / "b.nsight", World(n=300)))
    assert 'id="blocking"' not in rendered(c)
    c._frames["hol"] = to_pandas(blocking_of(201, TCP=(6000, 6000), Locks=(9000, 500)))
    (tmp_path / "b.html").write_text(rendered(c))
    load(browser, tmp_path / "b.html")
    cells = "return [...document.querySelectorAll('#blocking tbody tr')].map(r => [...r.cells].map(c => c.textContent.trim()))"
    assert run(browser, cells) == [
        [
            "Locks (A): of Locks in ... > loop > serve > lookup > do Locks",
            "60%",
            "1",
            "9.00 us",
            "9.00 us",
            "500 ns",
        ],
        [
            "TCP (A): of TCP in ... > loop > serve > lookup > do TCP",
            "40%",
            "1",
            "6.00 us",
            "6.00 us",
            "6.00 us",
        ],
    ]


def test_click_on_a_cause_filters_by_it(opened: Any) -> None:
    opened.find_element("css selector", "#cause-table tr[data-cause^='Head-of-line'] button").click()
    assert listed(opened) == 11


def test_box_of_a_cause_is_that_of_the_table(tmp_path: Path) -> None:
    """Counted by message, not by anomaly: two anomalies of one message add up in both."""
    c = nsight_report.open(write_capture(tmp_path / "c.nsight", World(n=400)))
    half = c.anomalies.assign(deviation_ns=c.anomalies["deviation_ns"] // 2)
    c._frames["anomalies"] = pd.concat([half, half], ignore_index=True)
    boxes = {cause["name"]: cause["box"] for cause in page_data.overview(Sheet.of(c, summarise(c)))["causes"]}
    of_messages = half["deviation_ns"].groupby([cause_names(half), half["message_id"]]).sum() * 2
    medians = of_messages.groupby(level=0).median().to_dict()
    assert medians
    assert {name: box[3] for name, box in boxes.items() if box} == pytest.approx(medians, abs=2)


def test_texts_of_a_lifetime_stay_inside_and_above_its_lines(browser: Any, page: Path) -> None:
    for width in (360, 1280):
        load(browser, page, width)
        run(browser, "location.hash = '#message-200'")
        shows(browser, 200)
        found = run(
            browser,
            "const svg = document.querySelector('#lifetime svg'), all = [...svg.children], w = svg.viewBox.baseVal.width;"
            "const last = Math.max(...all.map((e, i) => e.tagName === 'line' ? i : -1));"
            "return all.map((e, i) => [i > last, e]).filter(([, e]) => e.matches('.track,.mark-label,.other-label,.tick'))"
            ".map(([over, e]) => { const b = e.getBBox(); return [over, b.x >= -1, b.x + b.width <= w + 1, e.textContent]; })",
        )
        assert len(found) > 5
        assert [row for row in found if not all(row[:3])] == []


# --- widths, silence, access


@pytest.mark.parametrize("width", [360, 768, 1280, 2560])
def test_page_fits_its_width(browser: Any, page: Path, width: int) -> None:
    load(browser, page, width)
    run(browser, "location.hash = '#message-1000'")
    shows(browser, 1000)
    assert run(browser, "return document.documentElement.scrollWidth") <= width
    assert run(browser, "return document.querySelector('#lifetime svg').clientWidth") >= 300


def test_console_stays_empty_and_nothing_is_fetched(browser: Any, page: Path) -> None:
    load(browser, page)
    click_balloon(browser, 1000)
    browser.find_element("id", "close").click()
    choose(browser, "cause", "hog (A)")
    assert browser.get_log("browser") == []
    assert (
        run(
            browser,
            "return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length",
        )
        == 0
    )


def test_policy_stops_a_script_that_is_not_the_packages(opened: Any) -> None:
    run(
        opened,
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)",
    )
    assert run(opened, "return window.ran") is None
    assert any("Content Security Policy" in e["message"] for e in opened.get_log("browser"))


def test_landmarks_headings_and_labels(opened: Any) -> None:
    for landmark in ("header", "main", "nav[aria-label]", "footer"):
        assert opened.find_elements("css selector", landmark)
    levels = run(opened, "return [...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    unnamed = run(
        opened,
        "return [...document.querySelectorAll('img:not([alt]), select, svg[role=img], [role=application], [role=region]')]"
        ".filter(e => e.tagName === 'IMG' || !(e.labels?.length || e.ariaLabel || e.getAttribute('aria-labelledby')"
        " || e.querySelector?.('title'))).map(e => e.outerHTML.slice(0, 90))",
    )
    assert unnamed == []
    assert len(opened.find_elements("css selector", "figure details table")) >= 3  # tables for the figures
    twice = run(
        opened,
        "const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return ids.filter((v, i) => ids.indexOf(v) < i)",
    )
    assert twice == []


def test_screen_reader_is_told_a_name_of_everything_that_acts_or_shows(browser: Any, page: Path) -> None:
    """Checked in the browser's accessibility tree, with a message open."""
    load(browser, page)
    run(browser, "location.hash = '#message-200'")
    shows(browser, 200)
    browser.execute_cdp_cmd("Accessibility.enable", {})
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    told = [
        (n["role"]["value"], n.get("name", {}).get("value", "").strip())
        for n in nodes
        if not n.get("ignored")
    ]
    needs = {
        "application", "button", "Canvas", "checkbox", "columnheader", "combobox", "form", "graphics-symbol", "image", "link",
        "navigation", "region", "table", "textbox",
    }  # fmt: skip
    present = {role for role, _name in told}
    assert {"button", "combobox", "image", "link", "region", "table"} <= present
    assert [role for role, name in told if role in needs and not name] == []


# Which of the parts that scripts draw, and of the still pictures, are visible: balloons, causes, distribution, five timelines.
SEEN = (
    "const seen = (css) => [...document.querySelectorAll(css)].filter((e) => e.checkVisibility()).length;"
    "return [seen('.script-only'), seen('.static-only img')]"
)


def test_without_scripts_the_pictures_are_there(browser: Any, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get("about:blank")
        browser.get(page.as_uri())
        assert run(browser, SEEN) == [0, 8]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_printed_page_has_pictures_in_place_of_what_scripts_draw(opened: Any) -> None:
    assert run(opened, SEEN) == [3, 0]  # including the switch between light and dark
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert run(opened, SEEN) == [0, 8]
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


# --- names, two captures, many messages


def test_hostile_names_are_only_names(browser: Any, tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "a<b>.nsight", World(n=300, app="a&b;c", hog=HOSTILE))
    load(browser, write_page(tmp_path / "h.html", capture))
    click_balloon(browser, 200)
    assert HOSTILE in text(browser, "#why tbody")
    assert HOSTILE in text(browser, "#tree")
    assert run(browser, "return document.querySelectorAll('img').length") == 0
    assert browser.title == "a<b>.nsight: what delayed its slow messages"
    assert browser.get_log("browser") == []


def test_two_captures_stand_side_by_side(browser: Any, tmp_path: Path) -> None:
    before = write_capture(tmp_path / "before.nsight", World(n=400))
    after = write_capture(tmp_path / "after.nsight", World(n=300), against=str(before))
    load(browser, write_page(tmp_path / "c.html", after, against=str(before)))
    assert text(browser, "#compare") == "Compare with before.nsight"
    sides = run(browser, "return [...document.querySelectorAll('.sides h3')].map(h => h.textContent)")
    assert sides == ["after.nsight", "before.nsight"]
    lines = run(
        browser,
        "return [...document.querySelectorAll('#distribution .u-series .u-label')].map(e => e.textContent)",
    )
    assert lines[1:] == ["after.nsight (n=300)", "before.nsight (n=400)"]
    assert browser.get_log("browser") == []


def test_capture_without_slow_messages_has_a_page(browser: Any, tmp_path: Path) -> None:
    c = nsight_report.open(write_capture(tmp_path / "e.nsight", World(n=300)))
    for name in ("anomalies", "causes", "coverage", "compared"):
        c._frames[name] = getattr(c, name).iloc[:0]
    (tmp_path / "e.html").write_text(html.render(Sheet.of(c, summarise(c)), []))
    load(browser, tmp_path / "e.html")
    assert "none is selected by --slow p99-100" in text(browser, "dl.answers")
    assert listed(browser) == 0
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_page_of_100_000_messages_is_small_and_answers(browser: Any, tmp_path: Path) -> None:
    page = write_page(tmp_path / "big.html", write_capture(tmp_path / "big.nsight", World(n=100_000)))
    assert page.stat().st_size < 20_000_000
    load(browser, page)
    assert listed(browser) == 1000
    click_balloon(browser, 50_000)
    assert text(browser, "#one h3").startswith("Message ")
    assert browser.get_log("browser") == []


def test_message_without_a_lifetime_in_the_file_says_how_to_get_it(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "MOST_LIFETIMES", 1)
    load(browser, write_page(tmp_path / "few.html", write_capture(tmp_path / "few.nsight", World(n=400))))
    run(browser, "location.hash = '#message-201'")
    shows(browser, 201)
    assert not browser.find_element("id", "one-life").is_displayed()
    assert "nsight-report few.nsight --slow id:201 -o DIR" in text(browser, "#one-none")
    assert "hog (A)" in text(browser, "#why tbody")  # its causes are shown nevertheless


def test_page_says_in_whose_hands_a_request_was(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = nsight_report.open(write_capture(tmp_path / "hands.nsight", World(n=400)))
    parts = [
        (201, 7, "reader", 1_000, 3_000, "read", "measured"),
        (201, 8, HOSTILE, 3_000, 10_000, "lock", "inferred"),
        (202, 7, "reader", 5_000, 6_000, "read", "measured"),
    ]
    names = ("request_id", "tid", "comm", "start_ns", "end_ns", "how", "sure")
    monkeypatch.setattr(type(c), "work", lambda self, ids: pd.DataFrame(parts, columns=list(names)))
    (tmp_path / "hands.html").write_text(rendered(c))
    load(browser, tmp_path / "hands.html")
    run(browser, "location.hash = '#message-201'")
    shows(browser, 201)
    rows = "return [...document.querySelectorAll('#hands tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    assert run(browser, rows) == [
        ["reader[7]", "+0 ns", "2.00 us", "read it", ""],
        [f"{HOSTILE}[8]", "+2.00 us", "7.00 us", "woken from a lock", "inferred"],
    ]
    assert browser.find_element("id", "hands-part").is_displayed()
    # One thread had the request all the time, and nothing else: the lifetime already shows that.
    run(browser, "location.hash = '#message-202'")
    shows(browser, 202)
    assert not browser.find_element("id", "hands-part").is_displayed()
    assert browser.title != "1"


def test_page_says_whose_lifetimes_it_holds_and_an_option_chooses_how_many(
    browser: Any, tmp_path: Path
) -> None:
    capture = write_capture(tmp_path / "few.nsight", World(n=400))
    c = nsight_report.open(capture)
    sheet = Sheet.of(c, summarise(c))
    (tmp_path / "two.html").write_text(html.render(sheet, [], 2))
    load(browser, tmp_path / "two.html")
    assert (
        len(run(browser, "return [...document.querySelectorAll('script[id^=lifetime-]')].map((s) => s.id)"))
        == 2
    )
    assert "here for 2 of the 4 slow messages" in text(browser, "#which-lifetimes")
    (tmp_path / "all.html").write_text(html.render(sheet, []))
    assert (
        "which-lifetimes"
        not in (tmp_path / "all.html").read_text().partition("<main")[2].partition("<footer")[0]
    )


def test_page_says_that_the_filter_lacks_connections(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = nsight_report.open(write_capture(tmp_path / "c.nsight", World(n=400)))
    n = c.messages["conn_id"].nunique()
    (tmp_path / "c.html").write_text(html.render(Sheet.of(c, summarise(c)), []))
    load(browser, tmp_path / "c.html")
    assert not browser.find_element("id", "which-connections").is_displayed()
    monkeypatch.setattr(page_data, "_MOST_CONNECTIONS", 1)
    sheet = Sheet.of(c, summarise(c))
    sheet.messages = sheet.messages.assign(conn_id=sheet.messages["message_id"] % 3)
    (tmp_path / "c.html").write_text(html.render(sheet, []))
    load(browser, tmp_path / "c.html")
    assert n <= 300
    assert "the 1 busiest of 3 connections" in text(browser, "#which-connections")


def test_lifetimes_stop_where_the_file_would_grow_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = nsight_report.open(write_capture(tmp_path / "x.nsight", World(n=400)))
    sheet = Sheet.of(c, summarise(c))
    every = page_data.lifetimes(sheet)
    assert len(every) == 4
    monkeypatch.setattr(page_data, "MOST_LIFETIME_BYTES", sum(map(len, every.values())) - 1)
    assert list(page_data.lifetimes(sheet)) == list(every)[:3]


def rendered(c: Any) -> str:
    return html.render(Sheet.of(c, summarise(c)), [])


@pytest.fixture
def many(tmp_path: Path) -> Any:
    """20,000 slow messages with five anomalies each; hardly two of the anomalies are equal."""
    c = nsight_report.open(write_capture(tmp_path / "m.nsight", World(n=20_000)))
    one = c.anomalies.iloc[:1]
    numbers = np.repeat(c.messages["message_id"].to_numpy(np.int64), 5)
    rows = pd.concat([one] * len(numbers), ignore_index=True)
    nth = [f"{i:06}_" for i in range(len(rows))]
    c._frames["anomalies"] = rows.assign(
        message_id=numbers, category=np.resize(["Locks", "Memory", "Timer", "Disk", "Bus"], len(rows)), side="A",
        anomaly="slower", subject=[s + 150 * "f" for s in nth], path=[s + 310 * "p" for s in nth],
    )  # fmt: skip
    few = c.coverage.iloc[:1]
    c._frames["coverage"] = pd.concat([few] * 20_000, ignore_index=True).assign(
        message_id=c.messages["message_id"].to_numpy(np.int64),
        latency_ns=c.messages["latency_ns"].to_numpy(np.int64),
    )
    return c


def test_page_of_many_slow_messages_with_long_texts_stays_small_and_says_so(
    browser: Any, many: Any, tmp_path: Path
) -> None:
    (tmp_path / "m.html").write_text(rendered(many))
    assert (tmp_path / "m.html").stat().st_size < 20_000_000
    load(browser, tmp_path / "m.html")
    assert listed(browser) == 20_000
    assert "What exactly delayed a message is here for" in text(browser, ".no-room")
    choose(browser, "cause", "Bus (A)")
    assert listed(browser) == 20_000  # including messages for which only the sum is stored
    told = run(
        browser, "return JSON.parse(document.querySelector('#data').textContent).slow.map(t => 'why' in t)"
    )
    assert told == sorted(told, reverse=True)  # the slowest have the details
    numbers = [t["id"] for t in page_data.overview(Sheet.of(many, summarise(many)))["slow"]]
    for number, is_told in ((numbers[0], True), (numbers[-1], False)):
        run(browser, f"location.hash = '#message-{number}'")
        shows(browser, number)
        assert ("ffff" in text(browser, "#why tbody")) == is_told
        assert "Bus (A)" in text(browser, "#why tbody")
        assert browser.find_element("id", "why-brief").is_displayed() != is_told
    assert f"nsight-report show m.nsight {numbers[-1]}" in text(browser, "#why-brief")
    assert browser.get_log("browser") == []


def test_dots_and_balloons_are_thinned_and_the_page_says_so(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = nsight_report.open(write_capture(tmp_path / "d.nsight", World(n=2000)))
    assert "no-room" not in rendered(c).partition("<main")[2]
    monkeypatch.setattr(page_data, "MOST_DOTS", 100)
    monkeypatch.setattr(page_data, "MOST_SLOW", 8)
    (tmp_path / "d.html").write_text(rendered(c))
    load(browser, tmp_path / "d.html")
    assert listed(browser) == 8
    notes = run(browser, "return [...document.querySelectorAll('.no-room')].map(p => p.textContent)")
    assert notes[0].startswith("Balloons and list have 8 of the 20 slow messages")
    assert notes[1:] == ["Grey dots are 100 of 1,992 other messages, evenly spaced."]
    data = page_data.overview(Sheet.of(c, summarise(c)))
    ids = np.cumsum(data["messages"]["id"])
    assert len(ids) == 108
    assert {t["id"] for t in data["slow"]} <= set(ids)
    others = np.setdiff1d(ids, [t["id"] for t in data["slow"]])
    assert np.diff(others).max() <= 2 * 20  # every twentieth
    assert others[0] == 0
    assert others[-1] == 1999
    assert browser.get_log("browser") == []


def test_texts_of_anomalies_are_in_the_page_once(tmp_path: Path) -> None:
    c = nsight_report.open(write_capture(tmp_path / "t.nsight", World(n=2000)))
    path = "a_path_of_callers"
    c._frames["anomalies"] = c.anomalies.assign(path=path)
    data = page_data.overview(Sheet.of(c, summarise(c)))
    assert page_data.embedded(data).count(path) == 1
    why = [row for slow in data["slow"] for row in slow["why"]]
    assert len(why) == len(c.anomalies) > 20
    assert {data["texts"][row[7]] for row in why} == {path}


def test_lifetimes_get_what_the_rest_of_the_page_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = nsight_report.open(write_capture(tmp_path / "r.nsight", World(n=2000)))
    whole = rendered(c)
    rest = len(page_data.embedded(page_data.overview(Sheet.of(c, summarise(c)))))
    monkeypatch.setattr(page_data, "MOST_BYTES", rest + 10_000)
    held = rendered(c).count('id="lifetime-')
    assert 0 < held < whole.count('id="lifetime-')


# --- what is bundled


def test_bundled_library_is_the_pinned_one_with_its_licence() -> None:
    pinned = json.loads((VENDOR / "uplot.json").read_text())
    assert pinned["licence"] == "MIT"
    for name, (_inside, digest) in pinned["files"].items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    assert f"(v{pinned['version']})" in (VENDOR / "uPlot.iife.js").read_text()
    assert "Permission is hereby granted, free of charge" in (VENDOR / "LICENSE.uPlot").read_text()
    assert {p.name for p in VENDOR.iterdir()} == {*pinned["files"], "uplot.json"}


def test_page_carries_the_licence_of_what_it_bundles(page: Path) -> None:
    assert "Permission is hereby granted, free of charge" in page.read_text()
