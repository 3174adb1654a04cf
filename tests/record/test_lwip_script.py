# SPDX-License-Identifier: GPL-2.0-only
"""The probes of nsight-lwip.bt within those of nsight-record.bt: one program that bpftrace accepts."""

import re
from pathlib import Path

import pytest
from nsight_record import probes
from nsight_record.errors import Usage


def texts():
    directory = probes.script_directory()
    return [
        (directory / name).read_text() for name in (probes.SCRIPT, probes.LEGACY_SCRIPT, probes.LWIP_SCRIPT)
    ]


def test_both_variants_take_the_probes_of_lwip():
    new, old, lwip = texts()
    for script in (new, old):
        both = probes.with_lwip(script, lwip, "/opt/app")
        assert [len(re.findall(rf"^{word}$", both, re.M)) for word in ("BEGIN", "END")] == [1, 1]
        # bpftrace wants every definition before the first probe.
        assert both.index("struct nsight_lwip_frame {") < both.index("\nBEGIN\n")
        assert len(re.findall(r"^u(?:ret)?probe:/opt/app:\w+$", both, re.M)) == 4
        assert probes.LWIP_LIBRARY not in both.partition("\nBEGIN\n")[2]


def test_nothing_of_lwip_is_left_for_bpftrace_to_print_at_the_end():
    new, _, lwip = texts()
    both = probes.with_lwip(new, lwip, "/opt/app")
    kept = set(re.findall(r"(@lwip_\w+)", both))
    assert kept
    assert set(re.findall(r"clear\((@lwip_\w+)\)", both.partition("\nEND\n")[2])) == kept


def test_library_of_the_recorder_is_the_one_in_the_script():
    assert probes.LWIP_LIBRARY in texts()[2]


@pytest.mark.parametrize(
    "name", ['a:f { system("id") } uprobe:b', "two\nlines", "a b", "*", "a{b", 'q"q', "\x1b[31m", "ü"]
)
def test_name_that_could_be_more_than_a_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(name)
    for path in (tmp_path / name, tmp_path / "link"):
        with pytest.raises(Usage, match="takes only letters") as error:
            probes.library(str(path))
        assert "\x1b" not in str(error.value)
    (tmp_path / "lib.so.0").touch()
    assert probes.library(str(tmp_path / "lib.so.0")) == str((tmp_path / "lib.so.0").resolve())


def test_library_of_the_system_is_the_newest_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "LIBRARIES", tmp_path)
    assert probes.installed_lwip() == probes.LWIP_LIBRARY
    for name in ("liblwip.so", "liblwip.so.0", "liblwip.so.2", "liblwip.so.2.2.0"):
        (tmp_path / "x86_64-linux-gnu").mkdir(exist_ok=True)
        (tmp_path / "x86_64-linux-gnu" / name).touch()
    assert probes.installed_lwip() == str(tmp_path / "x86_64-linux-gnu/liblwip.so.2")
