# SPDX-License-Identifier: GPL-2.0-only
"""The commands of Documentation/capsule-by-hand.md exactly as written, in a mount namespace with private namespace names."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from machinery.harness import capabilities

from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.alone]

PAGE = ROOT / "Documentation/capsule-by-hand.md"
#: Other programs may use the same names as the page's namespaces.
PRIVATE = "set -eu\nmount -t tmpfs none /run\nmkdir /run/netns\ncd {}\n"


def commands(text: str) -> str:
    """The indented lines as one shell program, without the output."""
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    return "\n".join(line for line in lines if not re.match(r"\w+:\w+ (in|out) -> ", line)) + "\n"


def test_the_commands_of_the_page_find_the_slow_link(tmp_path: Path) -> None:
    """50 datagrams pass three layers. The last of 30 waits (30 * 1,042 - 2,000) * 8 / 8,000,000 s = 29.3 ms, minus the time to send them."""
    if os.geteuid():
        skip_or_fail("root", "network namespaces need root")
    if why := capabilities.programs("ip", "tc", "clang", "bpftool", "unshare")():
        skip_or_fail("testbed", why)
    program = PRIVATE.format(tmp_path) + commands(PAGE.read_text()).replace(
        "Documentation/examples", f"{ROOT}/Documentation/examples"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\S+ \w+ -> \S+ \w+) +n +(\d+) .* max +([\d.]+) us$", done.stdout, re.M)
    assert [(name, int(n)) for name, n, _ in rows] == [
        ("web:eth0 out -> host:v0 in", 50), ("host:v0 in -> host:v1 out", 50), ("host:v1 out -> db:eth0 in", 50),
    ]  # fmt: skip
    assert max(rows, key=lambda row: float(row[2]))[0] == "host:v1 out -> db:eth0 in"
    assert not list(tmp_path.iterdir())
