# SPDX-License-Identifier: GPL-2.0-only
"""A report's page in a browser: how tests create one, load it, and operate it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nsight_report
from nsight_report.export import html
from nsight_report.plots.figures import Sheet, drawn
from nsight_report.summary import summarise

from . import browser as browsers


def write_page(path: Path, capture: Path, figures: bool = False, **options: Any) -> Path:
    """The page of a capture; without ``figures`` only what the browser draws, which is faster."""
    c = nsight_report.open(capture, **options)
    sheet = Sheet.of(c, summarise(c))
    path.write_text(html.render(sheet, drawn(sheet) if figures else []))
    return path


def load(driver: Any, page: Path, width: int = 1280) -> Any:
    browsers.resize(driver, width, 900)
    driver.get("about:blank")  # otherwise a link to another place in the same page would not load it again
    driver.get(page.as_uri())
    driver.get_log("browser")
    driver.refresh()
    assert driver.execute_script("return document.body.dataset.ready") == "yes"
    return driver


def run(driver: Any, script: str) -> Any:
    return driver.execute_script(script)


def text(driver: Any, selector: str) -> str:
    return str(run(driver, f"return document.querySelector({json.dumps(selector)}).textContent"))


def waits_for(driver: Any, is_so: Callable[[], bool]) -> None:
    """The page receives a change of the address only after the click or script that caused it has ended."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 300).until(lambda _: is_so())


def shows(driver: Any, number: int) -> None:
    waits_for(driver, lambda: text(driver, "#one h3").startswith(f"Message {number}: "))


def listed(driver: Any) -> int:
    return int(text(driver, "#shown").split(" of ")[0].replace(",", ""))


def choose(driver: Any, which: str, label: str) -> None:
    from selenium.webdriver.support.ui import Select

    found = Select(driver.find_element("id", f"by-{which}"))
    found.select_by_visible_text(next(o.text for o in found.options if o.text.startswith(label)))


def click_at(driver: Any, x: float, y: float) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    actions = ActionBuilder(driver)
    actions.pointer_action.move_to_location(round(x), round(y)).click()
    actions.perform()
    ActionChains(driver).perform()


def click_balloon(driver: Any, number: int) -> None:
    run(driver, "document.querySelector('#balloon').scrollIntoView({block: 'center'})")
    click_at(driver, *run(driver, f"return document.querySelector('#balloon').positionOf({number})"))


def keys(driver: Any, *pressed: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*pressed).perform()
