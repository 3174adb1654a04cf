# SPDX-License-Identifier: GPL-2.0-only
"""Documents agree with the code: defaults, choices, exit codes, formats, parameters of the scripts."""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
from pathlib import Path

import nsight_record.cli
import nsight_record.errors
import nsight_record.host
import nsight_record.nic
import nsight_report.cli
import nsight_report.errors
import nsight_report.manifest
import pytest
from nsight_report import losses, stages
from nsight_report.capture import event_lines, raw_records
from nsight_report.clocks import clock_readings
from nsight_report.export import json as json_export
from nsight_report.selection.options import BASELINE_WITH_CALLS, FEW_BASELINE, MAX_BASELINE
from nsight_report.selection.population import MAX_SLOW

from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "Documentation"
MAN = DOCS / "man"
PAGES = sorted(MAN.iterdir())
SCRIPTS = sorted((ROOT / "bpftrace").glob("*.bt"))
PARSERS = {"nsight-record.8": nsight_record.cli.parser(), "nsight-report.1": nsight_report.cli.parser()}
FORMATS = (DOCS / "formats.md").read_text()
# Long options are tested in tests/docs/test_documents.py; -h and -o stand beside their long forms.
SHORT = re.compile(r"(?<![\w-])-[a-zA-Z](?![\w-])")


def plain(page: Path) -> str:
    """A man page without escapes, which would hide words."""
    text = re.sub(r"\\f[BIRP]|\\s[+-]?\d", "", page.read_text())
    return text.replace("\\-", "-").replace("\\&", "").replace('"', "")


def section(page: str, title: str) -> str:
    """The text below one .SH heading, joined to one line."""
    return re.split(r"^\.SH ", plain(MAN / page).partition(f".SH {title}\n")[2], flags=re.M)[0]


def entries(page: str) -> dict[str, str]:
    """Each .TP entry of OPTIONS by every option of its tag."""
    found = {}
    for entry in section(page, "OPTIONS").split(".TP\n")[1:]:
        tag = entry.partition("\n")[0]
        for option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", tag):
            found[option] = " ".join(entry.split())
    return found


def codes(module: object) -> set[int]:
    return {getattr(module, name) for name in dir(module) if name.startswith("EXIT_")}


def actions(page: str) -> list[argparse.Action]:
    return [a for a in PARSERS[page]._actions if a.option_strings and a.help != argparse.SUPPRESS]


@pytest.mark.parametrize("page", sorted(PARSERS))
def test_every_spelling_of_an_option_is_an_entry_and_no_other(page):
    assert set(entries(page)) == {s for a in actions(page) for s in a.option_strings}


@pytest.mark.parametrize("page", sorted(PARSERS))
def test_former_names_stand_in_the_compatibility_section_only(page):
    former = {s for a in PARSERS[page]._actions if a.help == argparse.SUPPRESS for s in a.option_strings}
    assert former
    assert former == set(re.findall(r"(?<![\w-])--[a-z-]+(?= is)", section(page, "COMPATIBILITY")))


@pytest.mark.parametrize("page", sorted(PARSERS))
def test_option_entries_state_choices_and_defaults(page):
    for action in actions(page):
        entry = entries(page)[action.option_strings[-1]]
        for choice in action.choices or ():
            assert re.search(rf"\b{choice}\b", entry), (action.option_strings, choice)
        if action.default not in (None, False, argparse.SUPPRESS):
            assert str(action.default) in entry, (action.option_strings, action.default)
        if action.nargs == "?":
            assert str(action.const) in entry, (action.option_strings, action.const)


def test_short_options_of_nsight_clock_are_entries():
    usage = (ROOT / "tools/nsight-record/clock/nsight-clock.c").read_text()
    taken = re.search(r'getopt_long\(argc, argv, "([\w:]+)"', usage)
    assert taken
    listed = {o for o in entries("nsight-clock.8") if SHORT.fullmatch(o)}
    assert listed == {f"-{letter}" for letter in taken[1].replace(":", "")}


@pytest.mark.parametrize(
    ("page", "known"),
    [
        ("nsight-record.8", codes(nsight_record.errors)),
        ("nsight-report.1", codes(nsight_report.errors) | {nsight_report.cli.EXIT_INTERNAL}),
    ],
)
def test_exit_codes_of_the_page_are_those_of_the_code(page, known):
    assert {int(n) for n in re.findall(r"^\.B (\d+)$", section(page, "EXIT STATUS"), re.M)} == known


def test_report_page_lists_the_stages_in_order_and_the_keys_of_json():
    order = ", ".join(stage.name for stage in stages.STAGES)
    assert order in entries("nsight-report.1")["--stage"]
    tree = ast.parse(Path(json_export.__file__).read_text())
    made = next(n for n in ast.walk(tree) if isinstance(n, ast.Return) and isinstance(n.value, ast.Dict))
    keys = ", ".join(k.value for k in made.value.keys)
    assert keys in entries("nsight-report.1")["--json"]


def test_report_page_tells_how_many_messages_are_looked_at():
    text = " ".join(plain(MAN / "nsight-report.1").split())
    most = f"At most {MAX_SLOW:,} slow and {MAX_BASELINE:,} baseline messages are examined"
    assert (
        f"{most} (with Intel PT {BASELINE_WITH_CALLS:,} baseline messages, with --decode chosen {FEW_BASELINE})"
        in text
    )
    assert f"At most {FEW_BASELINE} baseline messages of each compared capture" in text


# -- formats.md -------------------------------------------------------------------------


def table_under(heading: str) -> dict[str, str]:
    """First column's code words (each of them) to the rest of the row."""
    text = re.split(r"^#+ ", FORMATS.partition(heading + "\n")[2], flags=re.M)[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.M)
    return {word: rest for first, rest in rows for word in re.findall(r"`([^`]+)`", first)}


def words(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def written_manifest_keys() -> set[str]:
    """First-level keys that any module of the recorder gives to the manifest."""

    def of(node: ast.expr) -> bool:
        return ast.unparse(node).endswith("manifest")

    keys: set[str] = set()
    for path in sorted(Path(nsight_record.cli.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "describe" and path.stem == "plan":
                made = next(n for n in ast.walk(node) if isinstance(n, ast.Return)).value
                keys |= {k.value for k in made.keys}
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and of(node.target):
                keys |= {k.value for k in node.value.keys}
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and of(node.value):
                keys.add(ast.literal_eval(node.slice))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("manifest.setdefault"):
                keys.add(ast.literal_eval(node.args[0]))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("manifest.update"):
                keys |= {k.arg for k in node.keywords if k.arg}
    return keys


def test_formats_names_every_key_of_the_manifest_and_no_other():
    described = set(table_under("### manifest.json"))
    described -= {"recording", "cut", "complete"}  # the table of states
    described |= {"format", "version", "state", "start", "stop", "cut"}  # in the text above the tables
    assert all(f"`{k}`" in FORMATS for k in ("format", "version", "state", "start", "stop", "cut"))
    assert described == written_manifest_keys()


def test_formats_names_what_the_manifest_says_of_host_and_interfaces():
    table = table_under("### manifest.json")
    assert words(table["host"]) - {"name", "latency_us", "disabled"} >= set(nsight_record.host.describe())
    tree = ast.parse(Path(nsight_record.nic.__file__).read_text())
    made = {
        n.slice.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Subscript)
        and ast.unparse(n.value) == "found"
        and isinstance(n.slice, ast.Constant)
    }
    assert {"driver", "timestamping"} < made
    assert made <= words(table["nics"])


def test_formats_names_the_states_that_the_report_reads():
    rows = re.findall(
        r"^\| `(\w+)` \| ", FORMATS.partition("`state` is one of")[2].partition("`start`")[0], re.M
    )
    assert set(rows) == set(nsight_report.manifest.STATES)
    assert FORMATS.count(f'"{nsight_report.manifest.FORMAT}"') == 1


def test_formats_names_the_records_of_clock_readings_and_events():
    clock = FORMATS.partition("## Clock readings")[2].partition("\n## ")[0]
    assert {r.encode() for r in re.findall(r"^\| `(\w)` \|", clock, re.M)} == set(clock_readings._LINES)
    kinds = re.search(r"^\| 1 \| kind \| (.*) \|$", FORMATS, re.M)
    assert kinds
    named = "".join(re.findall(r"`(\w)`", kinds[1]))
    assert sorted(named) == sorted(event_lines.KINDS)


# -- bpftrace scripts -------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_usage_in_header_and_page_has_the_positional_parameters_of_the_script(script):
    header, _, body = script.read_text().partition("*/\n/*")[2].partition("*/")
    usage = re.search(rf"USAGE: bpftrace {script.name} (.*?)(?:>|$)", header, re.M)
    assert usage
    names = re.findall(r"[A-Z_]+|\b0\b", usage[1])  # 0: a place that another script of the recording uses
    used = {int(n) for n in re.findall(r"\$(\d+)\b", body)}
    assert used == {place for place, name in enumerate(names, 1) if name != "0"}
    assert usage[1].strip() in " ".join(section(f"{script.name}.8", "SYNOPSIS").split())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_every_documented_count_is_counted(script):
    text = script.read_text()
    counted = set(re.findall(r'@n\["(\w+)"\]', text))
    for where in (text.replace('@n["', ""), plain(MAN / f"{script.name}.8")):
        assert set(re.findall(r"@n\[([a-zA-Z]+)\]", where)) <= counted | {"kind", "X"}


# -- pages and links --------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_groff_renders_the_page_without_a_warning(page):
    if not shutil.which("groff"):
        skip_or_fail("groff", "groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-rLL=100n", str(page)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_refer_to_pages_that_exist(page):
    for name, number in re.findall(r"(nsight-[\w.-]+?) ?\((\d)\)", plain(page)):
        assert (MAN / f"{name}.{number}").exists(), f"{name}({number})"


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name
)
def test_links_to_headings_resolve(path):
    for target in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", path.read_text()):
        name, _, anchor = target.partition("#")
        text = (path.parent / name if name else path).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.M)
        assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, target


def test_loss_counters_and_kinds_of_decoded_events_stand_in_the_page():
    page = " ".join(plain(MAN / "nsight-perfdata.1").split())
    assert [key for key in losses.of_group("perf_data_") if key not in page] == []
    of_records = " ".join(plain(MAN / "nsight-rawdata.1").split())
    assert [key for key in losses.of_group("records_") if key not in of_records] == []
    fields = re.sub(r", (?=\w)", " ", of_records).split()
    assert [name for name in raw_records.STAMP.names if name != "pad" and name not in fields] == []
    header = (ROOT / "tools/nsight-report/native/events.h").read_text()
    kinds = re.findall(r"^\tX\((\w+), ", header, re.M)
    assert len(kinds) > 20
    assert [kind for kind in kinds if not re.search(rf"\b{kind}\b", page)] == []


def test_the_readme_lists_every_stage_with_its_package_in_order():
    from nsight_report.stages import STAGES

    table = (ROOT / "README.md").read_text().partition("| stage | package |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \| `(\w+)/`", table, re.M) == [
        (stage.name, stage.run.__module__.split(".")[1]) for stage in STAGES
    ]
