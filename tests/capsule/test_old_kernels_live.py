# SPDX-License-Identifier: GPL-2.0-only
"""The error of nsight-stamp on a kernel that lacks something it needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from machinery.harness import capabilities

from capsule.bed import run
from capsule.stamping import PROGRAM
from conftest import skip_or_fail

pytestmark = pytest.mark.live

HERE = Path(__file__).parent


def test_a_kernel_without_links_of_tc_programs_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Linux 6.5 and earlier do not know this kind of attachment: bpf(2) returns EINVAL. Here, a preloaded library does the same."""
    if os.geteuid():
        skip_or_fail("root", "packets are stamped by root")
    if not PROGRAM.exists():
        skip_or_fail("bpf", "nsight-stamp is not built")
    if why := capabilities.programs("gcc", "unshare")():
        skip_or_fail("bpf", why)
    library = tmp_path / "before_6_6.so"
    run("gcc", "-shared", "-fPIC", "-o", str(library), str(HERE / "before_6_6.c"))
    words = ["unshare", "-n", str(PROGRAM), "--point", "/proc/self/ns/net,1,0,e", "--grace-ms", "0"]
    with subprocess.Popen(
        [*words, str(tmp_path)], env={**os.environ, "LD_PRELOAD": str(library)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        said = process.stdout.readline()
        process.terminate()  # an nsight-stamp that works would go on
        _, errors = process.communicate()
    assert said == ""
    assert process.returncode == 1
    first, hint = errors.splitlines()
    assert first.startswith("error: this kernel has no links of tc programs (TCX)")
    assert hint.startswith("hint: boot Linux 6.6 or later")
