# SPDX-License-Identifier: GPL-2.0-only
"""Preconditions of the tests that start namespaces and servers."""

import os
from collections.abc import Callable

import pytest

from conftest import skip_or_fail
from machinery.testbed.bed import build_programs, on_path


@pytest.fixture(scope="session")
def programs() -> None:
    """The load client and the disturbances are built."""
    if not on_path("gcc") or not on_path("make"):
        skip_or_fail("testbed", "gcc and make are needed to build the load client")
    build_programs()


@pytest.fixture
def needs(programs: None) -> Callable[..., None]:
    """Skip unless root and all named programs are there."""

    def check(*names: str) -> None:
        if os.geteuid():
            skip_or_fail("root", "network namespaces need root")
        for name in ("ip", "nsenter", "setpriv", "taskset", "ss", *names):
            if not on_path(name):
                skip_or_fail("testbed", f"{name} is not installed")

    return check
