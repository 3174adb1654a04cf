# SPDX-License-Identifier: GPL-2.0-only
"""The tests of devices, sockets and forwarding that this machine's kernel may lack, on a stock Debian kernel in a guest."""

from __future__ import annotations

import os
import shutil

import pytest
from machinery.guest.retried import GuestUnavailable, run_guest

from capsule.stamping import PROGRAM
from conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.explicit]


@pytest.mark.parametrize(
    ("name", "which"),
    [("kinds", ""), ("others", ""), ("redirected", ""), ("stacked", "ipvlan"), ("stacked", "not ipvlan")],
)
def test_what_this_kernel_may_lack_works_on_a_stock_kernel(name: str, which: str) -> None:
    for program in ("qemu-system-x86_64", "busybox", "wg", "ipvsadm"):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin"):
            skip_or_fail("guest", f"{program} is not installed")
    if not PROGRAM.exists():
        skip_or_fail("bpf", "nsight-stamp is not built")
    pytest_ = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    options = ["--kernel", "6.12", "--timeout", "1400"]
    try:
        done = run_guest(
            [*options, "--", *pytest_, "-k", which, str(ROOT / f"tests/capsule/test_{name}_live.py")]
        )
    except GuestUnavailable as e:
        skip_or_fail("guest", str(e))
    print(done.stdout)
    assert done.returncode == 0
    assert "SKIPPED" not in done.stdout
