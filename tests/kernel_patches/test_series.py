# SPDX-License-Identifier: GPL-2.0-only
"""The kernel series are complete, say the same on every base, and carry no tag that only a person gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
HERE = TOP / "kernel-patches"
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(TOP / "tools" / "nsight-record"))
import cover  # noqa: E402
import sources  # noqa: E402
from nsight_record.perf import TRACEPOINTS  # noqa: E402

BASES = sources.bases()
KERNEL = [(series, base) for series in sources.SERIES for base in BASES.values()]
#: With the series of perf, which has a check of its own, on the bases that it exists for.
ALL = [*KERNEL, *(("perf", base) for base in BASES.values() if (HERE / "perf" / base.name).exists())]


def letters(series: str, base: sources.Base) -> str:
    """The cover letter."""
    return (HERE / series / base.name / "0000-cover-letter.patch").read_text()


def added(patches: list[Path]) -> str:
    """What the patches add, without the plus signs."""
    lines = [line for p in patches for line in p.read_text().splitlines()]
    return "\n".join(line[1:] for line in lines if line.startswith("+") and not line.startswith("+++"))


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_patches_are_numbered_as_the_cover_letter_lists_them(series: str, base: sources.Base) -> None:
    patches = sources.patches(series, base)
    numbers = [int(p.name[:4]) for p in patches]
    assert numbers == list(range(1, len(patches) + 1))
    listed = re.search(r"^NSight developers [(](\d+)[)]:", letters(series, base), re.M)
    assert listed and int(listed[1]) == len(patches)


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_cover_letter_names_the_base_commit_of_the_import(series: str, base: sources.Base) -> None:
    assert f"base-commit: {base.commit}\n" in letters(series, base) + "\n"


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_tools_are_named_and_nobody_has_signed(series: str, base: sources.Base) -> None:
    for patch in sources.patches(series, base):
        message = patch.read_text().split("\n---\n")[0]
        assert re.search(r"^Assisted-by: \S+:\S+", message, re.M), patch.name
        assert not re.search(r"^(Signed-off|Reviewed|Acked|Tested)-by:", message, re.M), patch.name


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_no_number_is_left_to_fill_in(series: str, base: sources.Base) -> None:
    for text in [letters(series, base), *(p.read_text() for p in sources.patches(series, base))]:
        assert not re.search(r"@\w+@", text.split("\ndiff --git")[0])
        assert "***" not in text.split("\ndiff --git")[0]


@pytest.mark.parametrize("series", sources.SERIES)
def test_records_are_the_same_on_every_base(series: str) -> None:
    """A recording of one kernel is read with the same code as that of another."""
    layouts = {}
    for base in BASES.values():
        text = added(sources.patches(series, base))
        layouts[base.name] = re.findall(r"^\t\t(__field\(.*\))$", text, re.M)
        assert layouts[base.name], base.name
    assert len({tuple(x) for x in layouts.values()}) == 1, layouts


def test_cover_for_b4_ends_with_the_recipients() -> None:
    text = cover.text("net")
    assert text.splitlines()[1] == ""
    assert re.match(r"(To|Cc): .*@", text.rstrip().splitlines()[-1])
    assert "base-commit" not in text and "NSight developers" not in text


def test_every_exception_to_checkpatch_has_a_reason() -> None:
    for line in (HERE / "checkpatch.allow").read_text().splitlines():
        if line and not line.startswith("#"):
            assert len(line.split(None, 2)[2]) > 20, line


@pytest.mark.parametrize("patch", sorted(HERE.glob("*/*/[0-9]*.patch")), ids=lambda p: "/".join(p.parts[-3:]))
def test_git_can_read_every_hunk(patch: Path) -> None:
    """A hunk that was edited by hand has another number of lines than its header says."""
    done = subprocess.run(
        ["git", "apply", "--numstat", str(patch)], capture_output=True, text=True, check=False
    )
    if patch.name.startswith("0000-"):
        assert "No valid patches" in done.stderr
    else:
        assert done.returncode == 0 and done.stdout, done.stderr


def test_patches_of_the_guest_say_that_nobody_sends_them() -> None:
    assert sources.TEST_ONLY not in sources.SERIES
    found = sources.patches(sources.TEST_ONLY, next(iter(BASES.values())))
    assert found
    for patch in found:
        subject = patch.read_text().split("\n\n")[0]
        assert "[TEST ONLY]" in subject and "NOT FOR SUBMISSION" in subject, patch.name


def test_the_live_recording_has_the_events_of_mode_tracepoints() -> None:
    script = (HERE / "guest-live.sh").read_text()
    missing = [t.name for t in TRACEPOINTS if not re.search(rf"\b{t.name}\b", script)]
    assert not missing
