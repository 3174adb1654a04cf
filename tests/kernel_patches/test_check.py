# SPDX-License-Identifier: GPL-2.0-only
"""The series of the newest base on its pristine sources: git am, checkpatch, recipients, compilation; perf and its tests.

Like ``make kernel-check BASE=...``, but perf is built only once, after the last patch. Downloads one source package (150 MB).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import skip_or_fail

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parents[2] / "kernel-patches"
NEEDED = ("bison", "flex", "bc", "ccache", "dpkg-deb", "git", "cpio", "perl")
#: Message of sources.py when the archive has a newer version than the base of the series.
DROPPED = "the archive has no "


@pytest.fixture(scope="module")
def newest() -> str:
    if os.geteuid() != 0:
        skip_or_fail("kernel-sources", "downloading with apt needs root")
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        skip_or_fail(
            "kernel-sources", f"{', '.join(missing)} missing (hint: make -C kernel-patches deps-check)"
        )
    sys.path.insert(0, str(HERE))
    import sources

    return next(iter(sources.bases()))


def checked(*argv: str) -> str:
    """The output of a check; the system's Python has the modules that the kernel's scripts import."""
    done = subprocess.run(["/usr/bin/python3", *argv], cwd=HERE, capture_output=True, text=True, timeout=3000)
    if DROPPED in done.stderr:
        skip_or_fail("archive", done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kernel_series_apply_pass_checkpatch_and_compile(newest: str) -> None:
    said = checked("check.py", newest)
    for series in ("timekeeping", "net"):
        n = len(list((HERE / series / newest).glob("0*.patch"))) - 1
        assert f"{newest} {series}: {n} patches apply" in said
    assert f"{newest} test-only: 1 patches apply" in said
    assert " 0 objects and programs compile" not in said


def test_perf_series_applies_builds_and_passes_its_tests(newest: str) -> None:
    said = checked("perf/check", "--fast", newest)
    assert "perf test 'Clock map': 3 passed" in said
    # Skipped if user space cannot read the clock of the events; in the guest of `make boot` it runs.
    assert re.search(
        r"perf test 'Record and convert times of the system clocks': (1 passed|skipped, the clock)", said
    )
    assert "24 times right in files of either byte order" in said
    assert "files compile for 32 bits" in said


#: Directories by which get_maintainer.pl recognises a kernel tree; the directories that the series change, and scripts.
EMPTY = ("arch", "drivers", "fs", "init", "ipc", "lib")
CHANGED = ("Documentation", "include", "kernel", "net", "scripts", "tools/perf", "tools/lib/perf")
SELFTESTS = ("tools/testing/selftests/net", "tools/testing/selftests/timers")


@pytest.fixture(scope="module")
def clone(newest: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's clone of a kernel tree, with an identity, and an editor that must not be started."""
    if not shutil.which("b4"):
        skip_or_fail("kernel-sources", "no b4 (hint: make -C kernel-patches deps-send)")
    import sources

    base = sources.bases()[newest]
    with sources.locked(base):
        sources.fetch(base)
    tree = tmp_path_factory.mktemp("send") / "clone"
    for argv in (
        ["clone", "-q", "--shared", "-n", str(base.tree), str(tree)],
        ["-C", str(tree), "sparse-checkout", "set", *CHANGED, *SELFTESTS],
        ["-C", str(tree), "checkout", "-q", "-B", "live", base.commit],
        ["-C", str(tree), "config", "user.name", "A Sender"],
        ["-C", str(tree), "config", "user.email", "sender@example.org"],
        ["-C", str(tree), "config", "core.editor", "false"],
    ):
        subprocess.run(["git", *argv], check=True)
    for name in EMPTY:
        (tree / name).mkdir(parents=True, exist_ok=True)
    return tree


@pytest.mark.parametrize(
    ("series", "messages", "subject", "recipient"),
    [
        ("timekeeping", 4, "[PATCH 0/3] timekeeping: ", "tglx@kernel.org"),
        ("net-fix", 1, "[PATCH net] udp: ", "netdev@vger.kernel.org"),
        ("net", 5, "[PATCH RFC net-next 0/4] net: ", "edumazet@google.com"),
        ("perf", 8, "[PATCH 0/7] perf: ", "linux-perf-users@vger.kernel.org"),
    ],
)
def test_b4_would_send_a_series_to_its_maintainers(
    clone: Path, tmp_path: Path, series: str, messages: int, subject: str, recipient: str
) -> None:
    subprocess.run(["git", "-C", str(clone), "checkout", "-q", "-f", "live"], check=True)
    said = checked("send.py", series, "--tree", str(clone), "--out", str(tmp_path))
    assert f"DRYRUN: Would have sent {messages} messages" in said
    written = sorted(tmp_path.glob("*.eml"))
    assert len(written) == messages
    first = written[0].read_text()
    assert subject in first and recipient in first and "From: A Sender <sender@example.org>" in first
    assert not any(
        "EDITME" in text or "\nSigned-off-by:" in text for text in (w.read_text() for w in written)
    )


def test_who_sends_has_to_be_known(clone: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["/usr/bin/python3", "send.py", "net", "--tree", str(clone), "--out", str(tmp_path)],
        cwd=HERE,
        env=os.environ | {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1 and "git does not know who sends" in done.stderr
    assert not list(tmp_path.iterdir())
