# SPDX-License-Identifier: GPL-2.0-only
"""A real Prometheus that scrapes one exporter."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machinery.testbed.ports import reserved

from conftest import skip_or_fail

HANGS_S = 120


def wait_for(condition: Callable[[], Any]) -> Any:
    """Wait until the condition returns something true; return that."""
    for _ in range(HANGS_S * 20):
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail("it does not come")


@contextlib.contextmanager
def scraping(directory: Path, target: int, *features: str, rules: str = "") -> Iterator[int]:
    """The port of a Prometheus that scrapes port ``target`` and evaluates ``rules`` several times a second."""
    if not shutil.which("prometheus"):
        skip_or_fail("prometheus", "prometheus is not installed")
    (directory / "rules.yml").write_text(rules or "groups: []")
    (directory / "prometheus.yml").write_text(
        "global: {scrape_interval: 200ms, evaluation_interval: 500ms}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: nsight, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    with reserved() as (port,):
        process = subprocess.Popen(
            ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address=127.0.0.1:{port}", *(f"--enable-feature={f}" for f in features)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield port
        finally:
            process.terminate()
            process.wait(HANGS_S)


def asked(port: int, path: str, **arguments: str) -> Any:
    """``data`` of Prometheus's answer; None while it is not up."""
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    try:
        with urllib.request.urlopen(url, timeout=HANGS_S) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def values(port: int, query: str) -> list[float]:
    """Values of an instant query."""
    return [float(row["value"][1]) for row in (asked(port, "query", query=query) or {"result": []})["result"]]
