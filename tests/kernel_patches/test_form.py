# SPDX-License-Identifier: GPL-2.0-only
"""What form.py and sources.py reject and report, on small repositories; the kernel's scripts are not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernel-patches"))
import form
import sources

PLACEHOLDER = "Fixes: FIXME (git log --reverse -S'copy_linear_skb' -- net/ipv4/udp.c)"


def git(tree: Path, *argv: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    command = ["git", "-C", str(tree), *identity, *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone whose second commit is the one to be found, and whose third commit touches the same words."""
    git(tmp_path, "init", "-q")
    source = tmp_path / "net/ipv4/udp.c"
    source.parent.mkdir(parents=True)
    for text, subject in (
        ("int copied;\n", "udp: begin"),
        ("int copied;\nint copy_linear_skb;\n", "udp: copy linear skbs"),
        ("int copied;\nint copy_linear_skb;\nint n = copy_linear_skb;\n", "udp: once more"),
    ):
        source.write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", subject)
    return tmp_path


def test_a_placeholder_is_resolved_in_a_tree_with_history(tree: Path) -> None:
    commit = git(tree, "log", "--abbrev=12", "--format=%h", "--grep=copy linear skbs")
    (note,) = form._fixes(tree, Path("0001-x.patch"), f"text\n\n{PLACEHOLDER}\n")
    assert f'put in "Fixes: {commit} ("udp: copy linear skbs")"' in note


def test_a_placeholder_is_reported_where_there_is_no_history(tmp_path: Path) -> None:
    (note,) = form._fixes(tmp_path, Path("0001-x.patch"), f"{PLACEHOLDER}\n")
    assert "look the commit up in a tree with history (git log --reverse -S'copy_linear_skb'" in note


def test_the_import_of_a_package_is_not_taken_for_the_commit(tree: Path) -> None:
    git(tree, "commit", "-q", "--amend", "-m", "linux-source-7.2")
    git(tree, "reset", "-q", "--soft", git(tree, "rev-list", "--max-parents=0", "HEAD"))
    git(tree, "commit", "-q", "--amend", "-m", "linux-source-7.2")
    (note,) = form._fixes(tree, Path("0001-x.patch"), f"{PLACEHOLDER}\n")
    assert "look the commit up" in note


@pytest.mark.parametrize("line", ['Fixes: 1234 ("too short")', "Fixes: FIXME", 'Fixes: ("no commit")'])
def test_a_commit_that_is_none_is_refused(tree: Path, line: str) -> None:
    with pytest.raises(form.FormError, match=r"0001-x\.patch"):
        form._fixes(tree, Path("0001-x.patch"), f"{line}\n")


def test_a_commit_is_taken(tree: Path) -> None:
    assert form._fixes(tree, Path("0001-x.patch"), 'Fixes: 0123456789ab ("udp: copy")\n') == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Assisted-by: a:b\nSigned-off-by: A <a@b>\n", "only a person"),
        ("index 1234567..89abcde 100644\nAssisted-by: a:b\n", "cut short"),
        ("nothing\n", "no Assisted-by"),
    ],
)
def test_tags_and_short_ids_are_refused(text: str, why: str) -> None:
    with pytest.raises(form.FormError, match=why):
        form._tags(Path("0001-x.patch"), text)


def test_net_has_80_columns_and_others_100() -> None:
    assert form._width(["net/ipv4/udp.c"]) == form._width(["tools/testing/selftests/net/x.c"]) == 80
    assert form._width(["kernel/time/timekeeping.c"]) == 100


def test_only_a_clone_of_a_kernel_is_taken_for_a_tree(tree: Path) -> None:
    with pytest.raises(sources.PatchError, match="no git clone of a kernel tree"):
        sources.of_tree(tree)
    (tree / "MAINTAINERS").write_text("")
    base = sources.of_tree(tree)
    assert base.newest and base.commit == git(tree, "rev-parse", "HEAD")
    assert sources.patches("net", base) == sources.patches("net", next(iter(sources.bases().values())))
