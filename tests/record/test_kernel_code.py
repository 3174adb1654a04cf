# SPDX-License-Identifier: GPL-2.0-only
"""The second copy of the kernel's code, with a perf that only makes the folder."""

from __future__ import annotations

from pathlib import Path

from nsight_record import kernel_code

COPIES = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
mkdir -p "$2/kcore_dir" && echo new >"$2/kcore_dir/kcore"
"""


def fake_perf(folder: Path, script: str) -> str:
    path = folder / "perf"
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


def recorded(folder: Path) -> Path:
    data = folder / "perf.data"
    (data / "kcore_dir").mkdir(parents=True)
    (data / "kcore_dir" / "kcore").write_text("old")
    return data


def test_the_copy_with_the_probes_takes_the_place_of_perfs_own(tmp_path):
    data = recorded(tmp_path)
    assert kernel_code.copy(fake_perf(tmp_path, COPIES), tmp_path / "kcore") is None
    assert kernel_code.install(tmp_path / "kcore", data)
    assert (data / "kcore_dir" / "kcore").read_text() == "new\n"
    assert not (tmp_path / "kcore").exists()


def test_perfs_own_stays_when_the_copy_failed(tmp_path):
    data = recorded(tmp_path)
    failing = fake_perf(tmp_path, "#!/bin/sh\necho no kcore here >&2\nexit 1\n")
    assert kernel_code.copy(failing, tmp_path / "kcore") == "no kcore here"
    assert not kernel_code.install(tmp_path / "kcore", data)
    assert (data / "kcore_dir" / "kcore").read_text() == "old"


def test_a_perf_that_cannot_be_started_is_told(tmp_path):
    assert "No such file" in (kernel_code.copy(str(tmp_path / "none"), tmp_path / "kcore") or "")
