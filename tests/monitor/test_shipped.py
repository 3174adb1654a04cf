# SPDX-License-Identifier: GPL-2.0-only
"""Files shipped beside the programs: Grafana dashboard, Prometheus rules, systemd units."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lines
import pytest
from machinery.testbed.ports import reserved
from nsight_monitor import exporter, relay
from prometheus_server import wait_for
from test_server import OPENMETRICS, collector

from conftest import ROOT, skip_or_fail

TOOL = ROOT / "tools/nsight-monitor"
DASHBOARD = json.loads((TOOL / "prometheus/nsight-dashboard.json").read_text())
RULES = (TOOL / "prometheus/nsight-rules.yml").read_text()
UNITS = ("nsight-monitor.service", "nsight-monitor-exporter.service")
#: Values that Grafana substitutes for its variables.
VARIABLES = {
    "$__rate_interval": "5m",
    "$__range": "1h",
    "$instance": "a|b",
    "$stage": "ip-start",
    "$group": "port",
}
#: systemd's exposure level, in tenths: 0 is no exposure. A loader of BPF programs has CAP_SYS_ADMIN.
MOST_EXPOSURE = dict(zip(UNITS, (40, 15), strict=True))


def queries(of: Any) -> Iterator[str]:
    """All queries below some part of the dashboard."""
    if isinstance(of, dict):
        if isinstance(of.get("expr"), str):
            yield of["expr"]
        of = list(of.values())
    for part in of if isinstance(of, list) else ():
        yield from queries(part)


def filled_in(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


def series() -> set[str]:
    """Names that the exporter serves."""
    histogram = lines.histogram("ip-start", 0, 1, b1=1)
    body, _ = collector(lines.snapshot(20, histogram, counts={"stamp_kernel": 1, "peek": 1})).answer(
        OPENMETRICS
    )
    return set(re.findall(r"^(nsight_\w+)", body.decode(), re.M))


def used(text: str) -> set[str]:
    """The exporter's names in queries; names of recording rules have colons."""
    return set(re.findall(r"(?<![\w:])nsight_\w+(?!\w*:)", text))


def test_prometheus_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    found = sorted(set(queries(DASHBOARD)))
    assert len(found) >= 15
    rules = [{"record": f"r:{i}", "expr": filled_in(q)} for i, q in enumerate(found)]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    if not shutil.which("promtool"):
        skip_or_fail("prometheus", "promtool is not installed")
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(found)} rules found" in done.stdout


def test_every_metric_of_dashboard_and_rules_is_the_exporters_and_none_is_forgotten() -> None:
    text = json.dumps(DASHBOARD)
    assert used(text) - {"nsight_stage_latency_seconds"} <= series()
    families = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in series()}
    shown = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in used(text)}
    assert shown == families
    assert used(RULES) <= series()


def test_the_dashboard_has_heat_map_percentiles_and_a_table_by_every_group() -> None:
    panels = {p["title"]: p for p in DASHBOARD["panels"]}
    assert len(panels) == len(DASHBOARD["panels"]) == len({p["id"] for p in panels.values()})
    assert panels["Latencies of $stage"]["type"] == "heatmap"
    percentiles = [
        re.match(r"histogram_quantile\(([\d.]+)", q) for q in queries(panels["Percentiles of $stage"])
    ]
    assert [m[1] for m in percentiles if m] == ["0.5", "0.9", "0.99", "0.999"]
    (group,) = [v for v in DASHBOARD["templating"]["list"] if v["name"] == "group"]
    done = subprocess.run([sys.executable, TOOL / "nsight-monitor", "--help"], capture_output=True, text=True)
    offered = re.search(r"--group-by \{([\w,]+)\}", done.stdout)
    assert offered and group["query"] == offered[1]
    assert all("$group" in q for q in queries(panels["$stage by $group"]))


def at_home(directory: Path) -> list[str]:
    """The units as files, with paths to the programs of this tree."""
    for name in UNITS:
        text = (TOOL / name).read_text()
        assert text.count("/usr/local/bin/nsight-monitor ") == 1
        (directory / name).write_text(text.replace("/usr/local/bin", str(TOOL)))
    return [str(directory / name) for name in UNITS]


@pytest.mark.tools
def test_systemd_takes_the_units_and_finds_little_exposed(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    paths = at_home(tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    for path in paths:
        most = MOST_EXPOSURE[Path(path).name]
        command = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def of_unit(name: str, key: str) -> str:
    found = re.search(rf"^{key}=(.*)$", (TOOL / name).read_text(), re.M)
    assert found
    return found[1]


@pytest.mark.live
@pytest.mark.tools
def test_loader_and_exporter_work_with_the_privileges_of_their_units(tmp_path: Path) -> None:
    """The loader has the capabilities that its unit allows; the exporter runs as a user without any, and gets only the socket that
    systemd connects. After the exporter ends, the next one gets the same counts and more."""
    if os.geteuid():
        skip_or_fail("root", "BPF programs need root")
    if exporter.prometheus_client is None:
        skip_or_fail("prometheus", "prometheus_client is not installed")
    names = [f"+{c.removeprefix('CAP_').lower()}" for c in of_unit(UNITS[0], "CapabilityBoundingSet").split()]
    assert of_unit(UNITS[1], "CapabilityBoundingSet") == ""
    bounded = ("setpriv", "--no-new-privs", f"--bounding-set=-all,{','.join(names)}")
    nobody = (
        "setpriv",
        "--no-new-privs",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
    )
    path = tmp_path / "lines"
    with reserved(2) as (port, other):
        argv = [
            *bounded,
            sys.executable,
            TOOL / "nsight-monitor",
            "--listen",
            path,
            "-i",
            "0.2",
            "--port",
            str(other),
        ]
        loader = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        try:
            for _ in range(2):
                wait_for(lambda: path.exists() or loader.poll() is not None)
                if loader.poll() is not None:
                    skip_or_fail("bpf", loader.communicate()[1])
                reader = relay.connected(path)
                assert reader is not None
                argv = [
                    *nobody,
                    sys.executable,
                    TOOL / "nsight-monitor",
                    "--input",
                    "-",
                    "--prometheus",
                    str(port),
                ]
                with reader:
                    process = subprocess.Popen(argv, stdin=reader.fileno(), stderr=subprocess.PIPE, text=True)
                assert process.stderr
                assert process.stderr.readline() == f"serving http://127.0.0.1:{port}/metrics\n"
                process.kill()
                process.communicate()
        finally:
            loader.terminate()
            assert loader.wait(120) == 130
