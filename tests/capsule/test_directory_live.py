# SPDX-License-Identifier: GPL-2.0-only
"""Output directories of file systems that lack something."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from machinery.harness import capabilities

from capsule.bed import Bed, run
from capsule.stamping import TOOL, Stamping
from conftest import skip_or_fail

pytestmark = pytest.mark.live

HERE = Path(__file__).parent


def _elsewhere(directory: Path) -> Path:
    is_ = directory.stat()
    return Path(f"/run/nsight-capsule.{is_.st_dev:x}-{is_.st_ino:x}")


def test_a_directory_whose_file_system_has_no_sockets_can_be_written(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9p of a guest refuses them with ENXIO. Here, a preloaded library does the same."""
    if why := capabilities.programs("gcc")():
        skip_or_fail("testbed", why)
    library = tmp_path / "no_sockets.so"
    run("gcc", "-shared", "-fPIC", "-o", str(library), str(HERE / "no_sockets.c"))
    with monkeypatch.context() as only_here:
        only_here.setenv("LD_PRELOAD", str(library))
        stamping = Stamping(tmp_path / "out", "--point", f"{bed.name('a')}:eth0", "--rate", "1")
    with stamping:
        control = _elsewhere(tmp_path / "out")
        assert control.is_socket()
        assert control.stat().st_mode & 0o777 == 0o700
        assert not (tmp_path / "out" / "control").exists()
        stamping.change("--rate", "1/2")
        manifest = stamping.end()
    assert manifest["state"] == "complete"
    assert not control.exists()
    # Nobody listens there any more.
    done = subprocess.run(
        [str(TOOL), "--change", str(tmp_path / "out"), "--rate", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no nsight-capsule of yours writes it" in done.stderr
