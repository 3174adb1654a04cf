# SPDX-License-Identifier: GPL-2.0-only
"""Documents agree with the programs: options, exit codes, probes, fields, names of files and targets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from machinery.harness import built
from nsight_report.capture import message_events, message_lines

from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "Documentation"
MAN = DOCS / "man"
PYTHON_TOOLS = {
    "nsight-record.8": ROOT / "tools/nsight-record/nsight-record",
    "nsight-capsule.8": ROOT / "tools/nsight-capsule/nsight-capsule",
    "nsight-monitor.8": ROOT / "tools/nsight-monitor/nsight-monitor",
    "nsight-report.1": ROOT / "tools/nsight-report/nsight-report",
    "nsight.py.1": ROOT / "perf-scripts/nsight.py",
    "nsight-edges.1": ROOT / "perf-scripts/nsight-edges",
}
NATIVE_TOOLS = {
    "nsight-clock.8": ROOT / "tools/nsight-record/clock/nsight-clock",
    "nsight-perfdata.1": ROOT / "tools/nsight-report/native/nsight-perfdata",
    "nsight-rawdata.1": ROOT / "tools/nsight-report/native/nsight-rawdata",
}
RUST_TOOLS = {"nsight-decode.1": ROOT / "build/cargo/release/nsight-decode"}
TOOLS = PYTHON_TOOLS | NATIVE_TOOLS | RUST_TOOLS
SCRIPTS = sorted((ROOT / "bpftrace").glob("*.bt"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def help_text(page: str) -> str:
    command = [str(TOOLS[page]), "--help"]
    if page in PYTHON_TOOLS:
        command.insert(0, sys.executable)
    elif page in RUST_TOOLS and not TOOLS[page].exists():
        skip_or_fail("decoder", f"{TOOLS[page].name} is not built (hint: make decoder)")
    elif not TOOLS[page].exists():
        built.make(TOOLS[page].parent)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def plain(page: Path) -> str:
    """A man page without escapes, which would hide words."""
    text = re.sub(r"\\f[BIRP]|\\s[+-]?\d", "", page.read_text())
    return text.replace("\\-", "-").replace("\\&", "").replace('"', "")


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


@pytest.mark.parametrize("page", sorted(TOOLS))
def test_man_page_and_help_have_the_same_options(page):
    # Options of other programs may be mentioned in running text: only the list of options counts.
    section = plain(MAN / page).partition(".SH OPTIONS")[2].partition(".SH ")[0]
    said = options(help_text(page))
    if page not in RUST_TOOLS:
        said -= {"--kcore"}  # perf's own, mentioned in running text
    assert said
    assert options(section) == said


@pytest.mark.parametrize("page", sorted(TOOLS))
def test_man_page_and_help_have_the_same_exit_codes(page):
    text = help_text(page).lower()
    text = text[text.index("exit codes:") :].partition("examples:")[0]
    if page in PYTHON_TOOLS:
        codes = set(re.findall(r"^  (\d+) ", text, re.M))
    else:
        codes = set(re.findall(r"(?:: |, )(\d+) ", " ".join(text.split())))
    section = plain(MAN / page).partition(".SH EXIT STATUS")[2].partition(".SH ")[0]
    assert len(codes) >= 4
    assert set(re.findall(r"(?:^\.BR? ?|^)(\d+)\b", section, re.M)) == codes


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_script_header_and_man_page_name_every_probe(script):
    text = script.read_text()
    header, _, body = text.replace("/* SPDX-License-Identifier: GPL-2.0-only */", "", 1).partition("*/")
    page = plain(MAN / f"{script.name}.8")
    probes = re.findall(r"^(?:tracepoint|kfunc|kretfunc):[\w:]+", body, re.M)
    probes += [f"{kind}:{name}" for kind, name in re.findall(r"^(u(?:ret)?probe):[\w./-]+:(\w+)", body, re.M)]
    assert probes
    for where in (re.sub(r"\n \*", " ", header), page):
        words = set(re.findall(r"[\w:]+", where))
        for probe in probes:
            kind, _, name = probe.partition(":")
            wanted = probe if kind != "tracepoint" else name
            if name.startswith("syscalls:sys_enter_") and "io_uring" not in name:
                wanted = name.removeprefix("syscalls:sys_enter_")
            assert wanted in words, f"{wanted} is attached but not documented"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_script_header_and_man_page_name_every_count(script):
    text = script.read_text()
    header, _, body = text.replace("/* SPDX-License-Identifier: GPL-2.0-only */", "", 1).partition("*/")
    special = {c for c in re.findall(r'@n\["(\w+)"\]', body) if len(c) > 1}
    for count in special:
        assert f"@n[{count}]" in header
        assert f"@n[{count}]" in plain(MAN / f"{script.name}.8")


def test_variants_share_the_probes_that_they_do_not_replace():
    new, old = ((ROOT / "bpftrace" / n).read_text() for n in ("nsight-record.bt", "nsight-record-legacy.bt"))
    for probe in ("net:netif_receive_skb", "net:net_dev_start_xmit", "sock:inet_sock_set_state"):
        bodies = [text.partition(f"tracepoint:{probe}\n")[2].partition("\n}\n")[0] for text in (new, old)]
        assert len(bodies[0]) > 500
        assert bodies[0] == bodies[1], probe


def test_formats_lists_the_fields_in_the_order_they_are_loaded():
    text = (DOCS / "formats.md").read_text().partition("\n## Message events")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", text, re.M)
    events, messages = rows[:24], rows[24:]
    assert [int(n) for n, _ in events] == list(range(1, 25))
    assert [name for _, name in events] == list(message_events._COLUMNS)
    assert [int(n) for n, _ in messages] == list(range(1, 29))
    assert [name for _, name in messages] == list(message_lines.COLUMNS)


def test_scripts_are_what_their_source_gives():
    done = subprocess.run([ROOT / "bpftrace/source/generate", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_formats_names_every_kind_and_code_of_the_edge_stream():
    sys.path.insert(0, str(ROOT / "perf-scripts"))
    from nsight_perf import edge_stream

    text = (DOCS / "formats.md").read_text().partition("\n## Edge stream")[2].partition("\n## ")[0]
    rust = (ROOT / "tools/nsight-decode/src/edges/stream.rs").read_text()
    numbers = re.findall(
        r"^ +\w+ = (\d+),", rust.partition("pub enum Code: u32 {")[2].partition("}")[0], re.M
    )
    decoder_codes = [int(n) for n in numbers]
    assert set(decoder_codes) > set(range(edge_stream.ERROR, edge_stream.PARTIAL + 1))
    types, kinds, codes = (t.splitlines() for t in re.findall(r"^\|---.*\n((?:\| .*\n)+)", text, re.M))
    for rows, known in (
        (types, (edge_stream.EDGES, edge_stream.SYMBOLS, edge_stream.EVENTS, edge_stream.NAMES)),
        (kinds, {*edge_stream.CALLS, *edge_stream.RETURNS, edge_stream.BEGIN, edge_stream.END}),
        (codes, decoder_codes),
    ):
        assert [int(row.split()[1]) for row in rows] == sorted(known)


def test_every_documented_exit_code_of_the_report_exists():
    from nsight_report import errors

    known = {getattr(errors, n) for n in dir(errors) if n.startswith("EXIT_")} | {1}
    section = plain(MAN / "nsight-report.1").partition(".SH EXIT STATUS")[2].partition(".SH ")[0]
    assert {int(n) for n in re.findall(r"^\.B (\d+)$", section, re.M)} == known


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_links_and_make_targets_exist(path):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (path.parent / target).exists(), target
    targets = set(re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", (ROOT / "Makefile").read_text(), re.M))
    for target in re.findall(r"^    make ([a-z-]+)|`make ([a-z-]+)`", text, re.M):
        assert (target[0] or target[1]) in targets, target


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_named_files_of_the_tree_exist(path):
    for name in re.findall(
        r"(?:bpftrace|perf-scripts|tools|tests|Documentation)/[\w./-]*\w", path.read_text()
    ):
        name = re.sub(r"/build/.*", "", name)  # made by make
        candidates = [ROOT / name, ROOT / f"{name}.bt"]
        assert any(c.exists() for c in candidates), name


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_options_in_examples_exist(path):
    for page in PYTHON_TOOLS:
        tool = re.escape(page.rpartition(".")[0])
        said = options(help_text(page))
        for line in re.findall(rf"^    (?:\S*/)?{tool} (.*)$", path.read_text(), re.M):
            used = options(line.partition(" -- ")[0].partition("#")[0])
            assert used <= said, (line, used - said)


@pytest.mark.parametrize("path", [*TEXTS, *sorted(MAN.iterdir())], ids=lambda p: p.name)
def test_documents_name_no_directory_of_one_machine(path):
    assert not re.findall(r"/(?:home|root|work|tmp)/\w+", path.read_text())


@pytest.mark.parametrize("page", sorted(MAN.iterdir()), ids=lambda p: p.name)
def test_man_pages_have_the_usual_sections(page):
    text = page.read_text()
    sections = re.findall(r"^\.SH (.+)$", text, re.M)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert "SEE ALSO" in sections
    name = re.search(r"^\.SH NAME\n(?:\.B )?(\S+) \\-", text, re.M)
    assert name and name[1].replace("\\-", "-") == page.name.rpartition(".")[0]


def test_contributing_lists_every_directory_of_the_tests():
    block = (ROOT / "CONTRIBUTING.md").read_text().partition("<!-- tests: every directory -->")[2]
    listed = re.findall(r"^    tests/(\w+) ", block, re.M)
    tracked = subprocess.run(
        ["git", "ls-files", "tests"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert sorted(listed) == sorted({path.split("/")[1] for path in tracked.split() if path.count("/") > 1})
