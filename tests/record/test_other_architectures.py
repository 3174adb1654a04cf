# SPDX-License-Identifier: GPL-2.0-only
"""The BPF programs, compiled for arm64. They cannot run here."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.tools

PROGRAMS = ROOT / "tools/nsight-record/collect/nsight-collect.bpf.c"


def test_on_arm64_an_exchange_completes_each_record(tmp_path: Path) -> None:
    """The end of a softirq writes one record. Its first word has to be seen after the others, which only x86 ensures for
    plain stores."""
    for name in ("clang", "llvm-objdump"):
        if not shutil.which(name):
            skip_or_fail("compiler", f"{name} is not installed")
    headers = Path("/usr/include") / (sysconfig.get_config_var("MULTIARCH") or "")
    made = tmp_path / "arm64.o"
    command = ["clang", "-g", "-O2", "-target", "bpf", "-D__TARGET_ARCH_arm64", "-idirafter", headers]
    done = subprocess.run([*command, "-c", PROGRAMS, "-o", made], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command = ["llvm-objdump", "-d", "--section=tp_btf/softirq_exit", made]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert " = xchg_64(" in text
