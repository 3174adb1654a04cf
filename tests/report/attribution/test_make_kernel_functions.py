# SPDX-License-Identifier: GPL-2.0-only
"""The generator of kernel-functions.csv on a tree small enough to check by hand."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from categories.compact import compact
from nsight_report.attribution.kernel_functions import KernelFunctions

from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools/nsight-report/make-kernel-functions"

TREE = {
    "Makefile": "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 7\n",
    "net/ipv4/tcp.c": """
int tcp_ack(int a)
{
	return a;
}
static void tcp_push(void)
{
}
static void tcp_gro_one(void) { }
static int __init tcp_setup(void)
{
	return 0;
}
static void helper(void) { }
""",
    "net/ipv4/udp.c": "int udp_rcv(void)\n{\n\treturn 0;\n}\nstatic void helper(void) { }\n",
    "net/socket.c": "SYSCALL_DEFINE3(recv, int, fd, void *, b, size_t, n)\n{\n\treturn 0;\n}\n",
    "arch/x86/entry.S": "SYM_FUNC_START(do_entry)\n\tret\nSYM_FUNC_END(do_entry)\n",
    "sound/beep.c": "void beep(void)\n{\n}\n",
}
RULES = """
rank net/ipv4/tcp.c
net/          *          Sockets
net/ipv4/t*   *          TCP
net/ipv4/udp.c *         UDP
net/ipv4/     *_gro_*    Receive
arch/x86/*.S  *          Entry
-             made_*,one Made
"""


def run(tmp_path: Path, *options: str, rules: str = RULES) -> subprocess.CompletedProcess[str]:
    if not shutil.which("ctags"):
        skip_or_fail("ctags", "universal-ctags is not installed")
    for name, text in TREE.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "rules.txt").write_text(rules)
    return subprocess.run(
        [sys.executable, TOOL, tmp_path / "tree", "--rules", tmp_path / "rules.txt", "-o", tmp_path / "out.csv", *options],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_tree_and_rules_give_the_expected_rows(tmp_path):
    done = run(tmp_path, "--settled")
    assert (done.returncode, done.stderr) == (0, "")
    header, rows = [], []
    for line in (tmp_path / "out.csv").read_text().splitlines():
        (header if line.startswith("#") else rows).append(line)
    # tcp_ack and tcp_push share a prefix of their category; tcp_gro_one has a row that overrides it; helper is
    # in two files, and the rank selects tcp.c; tcp_setup runs at boot only; no rule matches beep.
    assert rows == [
        "Entry,do_entry",
        "Made,made_* one",
        "Receive,tcp_gro_one",
        "Sockets,sys_recv",
        "TCP,helper tcp_*",
        "UDP,udp_rcv",
    ]
    assert any("Made from Linux 6.12.7: 7 functions in 8 patterns" in line for line in header)
    assert "helper: TCP of net/ipv4/tcp.c (TCP), net/ipv4/udp.c (UDP)" in done.stdout


def test_share_of_a_system_map_leaves_boot_code_and_module_names_apart(tmp_path):
    table = ["100 T _stext", "110 T tcp_ack.cold", "120 t __pfx_tcp_ack", "130 t unknown", "1f0 T _etext",
             "200 t at_boot", "300 t udp_rcv [udp]"]  # fmt: skip
    (tmp_path / "map").write_text("\n".join(table) + "\n")
    done = run(tmp_path, "--symbols", str(tmp_path / "map"))
    # _stext, tcp_ack and unknown; at_boot lies after _etext.
    assert "kernel: 1 of 3 functions" in done.stdout
    assert "modules: 1 of 1 functions" in done.stdout


@pytest.mark.parametrize(
    ("rules", "says"),
    [("net/ *\n", "rules.txt:1: expected"), ("- a*b C\n", "rules.txt:1: a*b"), ("x/ * C\n", "no kernel")],
)
def test_rules_that_cannot_be_used_are_named(tmp_path, rules, says):
    done = run(tmp_path, rules=rules)
    assert done.returncode == 3
    assert says in done.stderr
    assert "hint" in done.stderr or "FILE" in done.stderr


def test_every_name_keeps_its_category_and_rows_are_as_few_as_can_be():
    # By hand: aaa_ is mostly X (one exception each for Y and Z); bbb_ has no majority worth a prefix.
    names = {"aaa_1": "X", "aaa_2": "X", "aaa_3": "X", "aaa_4": "Y", "aaa_5": "Z", "bbb_1": "X", "bbb_2": "Y"}
    rows = compact(names)
    assert {n: KernelFunctions(rows).category(n) for n in names} == names
    assert len(rows) == 5
    assert rows["aaa_*"] == "X"


def test_all_small_trees_are_exact():
    letters = ["foo_a", "foo_b", "foo_ab", "foo_a_x", "fob"]
    for given in itertools.product("XYZ", repeat=len(letters)):
        names = dict(zip(letters, given))
        rows = compact(names)
        assert {n: KernelFunctions(rows).category(n) for n in names} == names
        assert len(rows) <= len(names)


def test_a_name_that_needs_no_row_is_still_not_given_to_another_category():
    names = {"foo_a": "X", "foo_b": "X", "foo_c": "Y"}
    rows = compact(names, unsaid={"foo_c": 0.5})
    assert KernelFunctions(rows).category("foo_c") in ("", "Y")
    assert compact({"lonely": "X"}, unsaid={"lonely": 0.5}) == {}


def test_names_outside_the_rules_keep_a_prefix_away():
    names = {"foo_a": "X", "foo_b": "X", **{f"foo_{n}": "" for n in "cdefghijklmnop"}}
    foreign = {n for n, c in names.items() if not c}
    # A prefix would save one row but claim fourteen names that no rule covers, at 0.1 rows each.
    assert compact(names, foreign=foreign) == {"foo_a": "X", "foo_b": "X"}
