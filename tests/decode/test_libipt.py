# SPDX-License-Identifier: GPL-2.0-only
"""The libipt that nsight-decode links is upstream's, and the patches beside it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from conftest import ROOT

LIBIPT = ROOT / "tools/nsight-decode/libipt"


def test_sources_are_upstreams_with_the_patches(tmp_path: Path) -> None:
    shutil.copytree(LIBIPT, tmp_path / "libipt")
    patches = sorted((LIBIPT / "patches").glob("*.patch"), reverse=True)
    assert patches
    for patch in patches:
        argv = [
            "patch",
            "-R",
            "-p1",
            "--no-backup-if-mismatch",
            "-F0",
            "-d",
            str(tmp_path / "libipt"),
            "-i",
            str(patch),
        ]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    sums = dict(reversed(line.split()) for line in (LIBIPT / "upstream.sha256").read_text().splitlines())
    found = {str(p.relative_to(LIBIPT)) for p in LIBIPT.rglob("*") if p.is_file()}
    own = {".clang-format", "README.md", "upstream.sha256"} | {f"patches/{p.name}" for p in patches}
    assert found - own == set(sums)
    for name, digest in sums.items():
        assert hashlib.sha256((tmp_path / "libipt" / name).read_bytes()).hexdigest() == digest, name


def test_the_program_needs_no_libipt_of_the_system() -> None:
    build = (ROOT / "tools/nsight-decode/build.rs").read_text()
    assert "rustc-link-lib=ipt" not in build
