# SPDX-License-Identifier: GPL-2.0-only
"""The kernel series are complete, equal in content on every base, and carry no tag that only a person may give."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
HERE = TOP / "kernel-patches"
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(TOP / "tools" / "nsight-record"))
import form  # noqa: E402
import send  # noqa: E402
import sources  # noqa: E402
from nsight_record.perf import TRACEPOINTS  # noqa: E402

BASES = sources.bases()
KERNEL = [(series, base) for series in sources.SERIES for base in BASES.values()]
#: Also the perf series, which has a separate check, on the bases for which it exists.
ALL = [*KERNEL, *(("perf", base) for base in BASES.values() if (HERE / "perf" / base.name).exists())]


def letters(series: str, base: sources.Base) -> str:
    """The cover letter, or the patch if there is only one."""
    first = sources.patches(series, base)
    letter = first[0].parent / "0000-cover-letter.patch"
    return (first[0] if len(first) == 1 else letter).read_text()


def message(patch: Path) -> str:
    """The text before the diff."""
    return patch.read_text().split("\n---\n")[0]


def added(patches: list[Path]) -> str:
    """The lines that the patches add, without the plus signs."""
    lines = [line for p in patches for line in p.read_text().splitlines()]
    return "\n".join(line[1:] for line in lines if line.startswith("+") and not line.startswith("+++"))


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_patches_are_numbered_as_the_cover_letter_lists_them(series: str, base: sources.Base) -> None:
    patches = sources.patches(series, base)
    numbers = [int(p.name[:4]) for p in patches]
    assert numbers == list(range(1, len(patches) + 1))
    listed = re.search(r"^NSight developers [(](\d+)[)]:", letters(series, base), re.M)
    assert len(patches) == 1 if listed is None else int(listed[1]) == len(patches)


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_cover_letter_names_the_base_commit_of_the_import(series: str, base: sources.Base) -> None:
    assert f"base-commit: {base.commit}\n" in letters(series, base) + "\n"


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_tools_are_named_and_nobody_has_signed(series: str, base: sources.Base) -> None:
    for patch in sources.patches(series, base):
        assert re.search(r"^Assisted-by: \S+:\S+", message(patch), re.M), patch.name
        assert not re.search(r"^(Signed-off|Reviewed|Acked|Tested)-by:", message(patch), re.M), patch.name


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_no_number_is_left_to_fill_in(series: str, base: sources.Base) -> None:
    for text in [letters(series, base), *(p.read_text() for p in sources.patches(series, base))]:
        assert not re.search(r"@\w+@", text.split("\ndiff --git")[0])
        assert "***" not in text.split("\ndiff --git")[0]


@pytest.mark.parametrize(("series", "base"), ALL, ids=lambda v: getattr(v, "name", v))
def test_ids_are_whole_and_no_version_is_counted(series: str, base: sources.Base) -> None:
    for patch in sources.patches(series, base):
        short = re.findall(r"^index (?![0-9a-f]{40}\.\.[0-9a-f]{40}).*", patch.read_text(), re.M)
        assert not short, patch.name
        assert "Changes: v1" not in patch.read_text()
    assert "Changes: v1" not in letters(series, base)


@pytest.mark.parametrize("series", ["timekeeping", "net", "perf"])
def test_cover_letter_says_how_the_patches_came_about_and_leaves_recipients_to_get_maintainer(
    series: str,
) -> None:
    letter = letters(series, next(iter(BASES.values())))
    assert "How these patches came about: an AI coding assistant (see Assisted-by)" in letter
    assert not re.search(r"^(To|Cc): ", letter, re.M)


@pytest.mark.parametrize("base", BASES.values(), ids=lambda b: b.name)
def test_timekeeping_exports_the_mask_and_marks_suspend_and_resume(base: sources.Base) -> None:
    text = added(sources.patches("timekeeping", base))
    assert re.search(r"__field\(u64,\s+mask\)", text) and "& mask) * mult" in text
    assert re.search(r"TK_SUSPEND\)", text) and re.search(r"TK_CLOCK_WAS_SET \| TK_RESUME", text)


def test_a_tracepoint_behind_its_static_branch_is_called_without_another() -> None:
    """trace_*() contains a static branch; trace_call__*() has none, in kernels that have it."""
    text = added([p for s in sources.SERIES for p in sources.patches(s, next(iter(BASES.values())))])
    assert "trace_call__timekeeping_update(tk" in text and "trace_call__sock_data_queued(sk" in text
    for name in re.findall(r"trace_(\w+)_enabled\(\)", text):
        calls = re.findall(rf"\btrace_{name}\(sk, skb, rcv_nxt|\btrace_{name}\(tk", text)
        assert not calls, name


@pytest.mark.parametrize("base", BASES.values(), ids=lambda b: b.name)
def test_the_clock_selftest_is_destructive_and_restores_the_clock_first_of_all(base: sources.Base) -> None:
    text = added(sources.patches("timekeeping", base))
    makefile = [line for line in text.splitlines() if "timekeeping-trace" in line and "set-tz" in line]
    assert makefile and "rtcpie timekeeping-trace" not in text
    keep = text[text.index("static void keep_clock") :]
    assert keep.index("atexit(restore_clock)") < keep.index("set_frequency(ppm")
    assert "set_frequency(original.freq)" in text and "SIGTERM" in text


@pytest.mark.parametrize("base", BASES.values(), ids=lambda b: b.name)
def test_the_fix_for_udp_stands_alone_and_says_how_to_find_its_commit(base: sources.Base) -> None:
    (patch,) = sources.patches("net-fix", base)
    assert "Subject: [PATCH net] udp: " in patch.read_text()
    assert form.PLACEHOLDER.search(message(patch)) or re.search(
        r'^Fixes: [0-9a-f]{12} \("', message(patch), re.M
    )
    assert "skb_copy_datagram_iovec" not in added(sources.patches("net", base))


@pytest.mark.parametrize("base", BASES.values(), ids=lambda b: b.name)
def test_net_claims_only_what_recvmsg_does(base: sources.Base) -> None:
    patches = sources.patches("net", base)
    text = added(patches)
    assert "[RFC PATCH net-next" in letters("net", base)
    assert "read once" not in text and "tile" not in text and "under the lock of the receive queue" in text
    assert "skaddr=%p" in text and "CONFIG_FTRACE=y" in text
    for way in ("fentry", "tcp_probe", "BPF timestamping"):
        assert way in letters("net", base), way
    wide = [w for line in text.splitlines() if len(w := line.expandtabs(8)) > 80 and "TP_printk" not in w]
    assert not wide


def test_perf_finds_the_clock_by_its_own_last_field_and_multiplies_in_64_bits() -> None:
    text = added(sources.patches("perf", next(iter(BASES.values()))))
    clock = text[text.index("bool perf_event__has_clock(") :].split("\n}\n")[0]
    assert "event_contains(event->time_conv, clk_reserved)" in clock and "sizeof" not in clock
    assert "(u64)ts.tv_sec * NSEC_PER_SEC" in text and "37LL * NSEC_PER_SEC" in text
    assert not re.search(r"(?<!\(u64\)rec->)\bclock_map_ms \* NSEC_PER_MSEC", text)


def test_perf_has_no_renaming_no_embedded_python_and_no_inject() -> None:
    patches = sources.patches("perf", next(iter(BASES.values())))
    touched = {f for p in patches for f in form.files(p)}
    assert not [f for f in touched if "python" in f.lower() or f.endswith("builtin-inject.c")]
    text = added(patches)
    assert "prctl" not in text and "BUFFER_PAGES" not in text and "BUFFER_SIZE / page_size" in text
    assert '"cs_id=x86-tsc "' in text and "clock-map.h" not in added(patches[:1])


@pytest.mark.parametrize("series", sources.SERIES)
def test_records_are_the_same_on_every_base(series: str) -> None:
    """The same code reads the recordings of all these kernels."""
    layouts = {}
    for base in BASES.values():
        text = added(sources.patches(series, base))
        layouts[base.name] = re.findall(r"^\t\t(__field\(.*\))$", text, re.M)
        assert layouts[base.name] or series == "net-fix", base.name
    assert len({tuple(x) for x in layouts.values()}) == 1, layouts


def test_cover_for_b4_has_title_and_text_and_no_list_of_patches() -> None:
    text = send.cover(sources.patches("net", next(iter(BASES.values()))))
    title, empty, first = text.splitlines()[:3]
    assert title.startswith("net: ") and not empty and first
    assert "base-commit" not in text and "NSight developers" not in text and "tools/testing" not in text
    assert send.cover(sources.patches("net-fix", next(iter(BASES.values())))).startswith("udp: ")


def test_every_exception_to_checkpatch_has_a_reason() -> None:
    for line in (HERE / "checkpatch.allow").read_text().splitlines():
        if line and not line.startswith("#"):
            assert len(line.split(None, 2)[2]) > 20, line


@pytest.mark.parametrize("patch", sorted(HERE.glob("*/*/[0-9]*.patch")), ids=lambda p: "/".join(p.parts[-3:]))
def test_git_can_read_every_hunk(patch: Path) -> None:
    """A hunk that was edited by hand may not have the number of lines in its header."""
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


def test_check_of_perf_takes_folders_of_patches_only(tmp_path: Path) -> None:
    bases = runpy.run_path(str(HERE / "perf" / "check"))["bases"]
    for name in ("6.12", "7.2", "__pycache__"):
        (tmp_path / name).mkdir()
    for name in ("6.12", "7.2"):
        (tmp_path / name / "0000-cover-letter.patch").touch()

    assert bases(tmp_path) == ["7.2", "6.12"]
