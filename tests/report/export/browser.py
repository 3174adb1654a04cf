# SPDX-License-Identifier: GPL-2.0-only
"""A headless browser without network access: Debian's chromium, driven by selenium.

browser.py REPORT.html WIDTH OUT.png [#message-NUMBER]     a screenshot of the whole page
"""

from __future__ import annotations

import base64
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # All requests of a page fail: a report needs no network.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)


def missing() -> str:
    """The missing programs; '' if nothing is missing."""
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            return f"{program} is not installed (hint: make deps-test)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "Python package selenium is not installed (hint: make build)"
    return ""


@contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Any]:
    """A window of this size with an empty profile; the browser console's logs are kept."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="nsight-browser-") as profile:
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()
        for flag in (*FLAGS, *root, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        # With an explicit service, selenium does not search the network for a driver.
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            # Windows are never narrower than 500, so the size of a phone is set for the page.
            resize(driver, width, height)
            yield driver
        finally:
            driver.quit()


def resize(driver: Any, width: int, height: int) -> None:
    """Make the page this wide."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def whole_page(driver: Any, path: Path) -> None:
    """A picture of the whole page."""
    size = driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
    )
    path.write_bytes(base64.b64decode(shot["data"]))


def main() -> int:
    """Entry point."""
    if len(sys.argv) not in (4, 5):
        print(__doc__, file=sys.stderr)
        return 2
    page, width, out = Path(sys.argv[1]).resolve(), int(sys.argv[2]), Path(sys.argv[3])
    with browser(width) as driver:
        driver.get(page.as_uri() + (sys.argv[4] if len(sys.argv) == 5 else ""))
        whole_page(driver, out)
        for entry in driver.get_log("browser"):
            print(entry["level"], entry["message"], file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
