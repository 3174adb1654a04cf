# SPDX-License-Identifier: GPL-2.0-only
"""The registry of losses: every kind that is counted is in it, and every kind in it is counted somewhere."""

from __future__ import annotations

import ast
import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from nsight_report import losses
from nsight_report.calls import decoder
from nsight_report.errors import BadInput
from nsight_report.manifest import Manifest
from nsight_report.tables import schema

PACKAGE = Path(losses.__file__).parent
ROOT = PACKAGE.parents[2]


def counted() -> tuple[set[str], set[str]]:
    """Keys and key prefixes in the package's calls of ``Ledger.add`` and ``Ledger.counted``."""
    keys, prefixes = set(), set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            if not name or not node.args or len(node.args) + len(node.keywords) < 2:
                continue
            key = node.args[0]
            if name == "counted":
                prefixes.add(key.value)
            if name != "add":
                continue
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                keys.add(key.value)
            elif isinstance(key, ast.JoinedStr):
                prefixes.add(key.values[0].value)
    return keys, prefixes


def test_what_is_counted_is_registered_and_the_reverse() -> None:
    keys, prefixes = counted()
    assert keys - set(losses.registry()) == set()
    unused = [k for k in losses.registry() if k not in keys and not k.startswith(tuple(prefixes))]
    assert unused == []
    assert len(keys) > 90
    assert len(prefixes) >= 5


def test_a_loss_that_the_recorder_could_not_count_is_told() -> None:
    known = {"tool": "collect", "what": "records lost", "count": 7}
    unknown = {"tool": "collect", "what": "it ended without its counts", "count": None}
    raw = {"losses": [known, unknown, {"count": "many"}, {}], "listen_overflows": 3}
    rows = Manifest("tracepoints", False, raw).losses().table().to_pylist()
    told = [(row["key"], row["cause"], row["count"]) for row in rows]
    assert sorted(told) == [
        ("accept_queue_full", "connection attempts met a full accept queue", 3),
        ("recorder_lost", "collect: records lost", 7),
        ("recorder_lost_unknown", "collect: it ended without its counts", 1),
    ]


def test_keys_are_plain_and_sorted() -> None:
    keys = list(losses.registry())
    assert keys == sorted(keys)
    assert [key for key in keys if not re.fullmatch(r"[a-z][a-z0-9_]*", key)] == []


@pytest.mark.parametrize("loss", losses.registry().values(), ids=lambda loss: loss.key)
def test_errors_and_warnings_say_what_they_mean(loss: losses.Loss) -> None:
    assert loss.cause
    assert loss.detail or loss.severity == "info"


def test_an_unknown_key_and_a_missing_word_are_bugs() -> None:
    ledger = losses.Ledger("clocks")
    with pytest.raises(KeyError):
        ledger.add("no_such_loss", 1)
    with pytest.raises(KeyError):
        ledger.add("clock_reading_not_checked", 1)  # without the name of the clock


def test_counts_of_a_program_are_entered_and_an_unknown_key_does_not_vanish() -> None:
    ledger = losses.Ledger("capture")
    ledger.counted("framing_", {"holes": 2, "resyncs": 0, "packets": 99}, but=["packets"])
    assert ledger.table().select(["key", "count"]).to_pylist() == [{"key": "framing_holes", "count": 2}]
    with pytest.raises(BadInput, match="framing_no_such_count"):
        ledger.counted("framing_", {"holes": 2, "no_such_count": 0})


RUST = ROOT / "tools/nsight-decode/src/losses/registry.rs"
#: Loss: "key" Severity "cause" "detail" "remedy",
RUST_ROW = re.compile(r'^    \w+: "(\w+)" (\w+) "([^"\\]*)"\s+"([^"\\]*)"\s+"([^"\\]*)",$', re.M)


def test_the_registry_of_the_decoder_is_that_of_the_report() -> None:
    rows = RUST_ROW.findall(RUST.read_text())
    ours = [
        (loss.key, loss.severity, loss.cause, loss.detail, loss.remedy)
        for key, loss in losses.registry().items()
        if key.startswith("decode_")
    ]
    assert sorted(ours) == sorted(
        (f"decode_{key}", severity.lower(), *words) for key, severity, *words in rows
    )
    assert len(rows) == RUST.read_text().count(': "') > 20  # no row that the pattern misses


def test_what_the_decoder_counted_is_entered_under_its_keys() -> None:
    told = [
        {"key": "overflow", "count": 2**64 - 1, "words": {}},
        {"key": "object_missing", "count": 3, "words": {"object": "/bin/{a}", "why": "{places}"}},
    ]
    ledger = losses.Ledger("calls")
    decoder.account(decoder.Decoded([], {"losses": told}), ledger)
    rows = {row["key"]: (row["severity"], row["count"], row["cause"]) for row in ledger.table().to_pylist()}
    assert rows == {
        "decode_overflow": ("error", 2**63 - 1, "processor lost trace packets"),
        "decode_object_missing": ("warning", 3, "code missing: /bin/{a}"),
    }


@pytest.mark.parametrize(
    "loss",
    [
        {"cause": "processor lost trace packets", "severity": "error", "count": 1},
        {"key": "no_such_loss", "count": 1, "words": {}},
        {"key": "object_missing", "count": 1, "words": {"object": "x"}},
        {"key": "overflow", "count": 1, "words": {"places": "x"}},
    ],
)
def test_a_decoder_of_another_version_is_an_error_with_its_fix(loss: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as error:
        decoder.account(decoder.Decoded([], {"losses": [loss]}), losses.Ledger("calls"))
    assert error.value.hint == "run: make decoder"


def test_the_same_loss_adds_up_and_another_word_is_another_row() -> None:
    ledger = losses.Ledger("clocks")
    for domain, n in (("tai", 1), ("tai", 2), ("perf", 4)):
        ledger.add("clock_reading_not_checked", n, domain=domain)
    ledger.add("bytes_without_read", 10, places=1)
    ledger.add("bytes_without_read", 20, places=2)
    ledger.add("no_clock_map", 0)
    rows = {row["detail"]: (row["key"], row["count"]) for row in ledger.table().to_pylist()}
    assert rows == {
        "direct readings of tai outside the mapped range": ("clock_reading_not_checked", 3),
        "direct readings of perf outside the mapped range": ("clock_reading_not_checked", 4),
        "in 3 places read events are missing: so are their messages": ("bytes_without_read", 30),
    }


def test_words_of_a_capture_are_not_read_as_places_to_fill() -> None:
    ledger = losses.Ledger("record")
    ledger.add("recorder_lost", 1, tool="{places}{0}", what="{x}")
    assert ledger.table()["cause"].to_pylist() == ["{places}{0}: {x}"]


def test_pages_that_are_generated_are_what_the_package_says() -> None:
    loader = SourceFileLoader("writer", str(ROOT / "tools/nsight-report/write-pages"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    writer = module_from_spec(spec)
    loader.exec_module(writer)
    page = (ROOT / "Documentation/losses.md").read_text()
    assert page == writer.loss_page()  # "make scripts" writes the page
    assert page.count("\n| `") == len(losses.registry())
    formats = (ROOT / "Documentation/formats.md").read_text()
    assert formats == writer.tables(formats)
    told = formats.partition(writer.MARK)[2]
    assert told.count("\n### ") == len(schema.TABLES)
    assert told.count("\n| `") == sum(len(table.columns) for table in schema.TABLES.values())
