# SPDX-License-Identifier: GPL-2.0-only
"""Requirements for every patch of every series: tags, full IDs, checkpatch, recipients, Fixes."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: A commit that must be looked up in a tree with history: ``Fixes: FIXME (git log -S'NEEDLE' -- PATH)``.
PLACEHOLDER = re.compile(r"^Fixes: FIXME \(git log --reverse -S'([^']+)' -- (\S+)\)$", re.M)


class FormError(Exception):
    """A patch violates a requirement; the message names the patch."""


@dataclass
class Form:
    """Findings in one or more patches."""

    excused: int = 0
    recipients: dict[str, list[str]] = field(default_factory=dict)  # by name of the patch
    notes: list[str] = field(default_factory=list)

    def add(self, other: Form) -> None:
        """Add the findings in another patch."""
        self.excused += other.excused
        self.recipients |= other.recipients
        self.notes += other.notes


def files(patch: Path) -> list[str]:
    """Paths that a patch changes."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.M)


def allowed() -> list[tuple[str, str]]:
    """Type and file pattern of each exception in checkpatch.allow."""
    lines = (HERE / "checkpatch.allow").read_text().splitlines()
    return [
        (words[0], words[1]) for line in lines if line and line[0] != "#" and (words := line.split(None, 2))
    ]


def check(tree: Path, patch: Path) -> Form:
    """All checks, with the scripts of ``tree``; FormError for the first violation."""
    text = patch.read_text()
    _tags(patch, text)
    return Form(
        _checkpatch(tree, patch),
        {patch.name: _recipients(tree, patch)},
        _fixes(tree, patch, text),
    )


def _tags(patch: Path, text: str) -> None:
    if re.search(r"^(Signed-off-by|Reviewed-by|Acked-by|Tested-by):", text, re.M):
        raise FormError(f"{patch.name}: has a tag that only a person gives")
    if not re.search(r"^Assisted-by: ", text, re.M):
        raise FormError(f"{patch.name}: no Assisted-by")
    if short := re.findall(r"^index (?![0-9a-f]{40}\.\.[0-9a-f]{40}\b).*", text, re.M):
        raise FormError(f"{patch.name}: {short[0]}: IDs are cut short (hint: git format-patch --full-index)")


def _width(touched: list[str]) -> int:
    """Maximum columns of a line: 80 for netdev, checkpatch's 100 for others."""
    return 80 if any(re.match(r"net/|tools/testing/selftests/net/", f) for f in touched) else 100


def _checkpatch(tree: Path, patch: Path) -> int:
    """Returns the number of excused complaints."""
    touched = files(patch)
    argv = [
        "perl",
        "scripts/checkpatch.pl",
        "--strict",
        "--terse",
        "--showfile",
        "--show-types",
        "--no-summary",
    ]
    argv += [f"--max-line-length={_width(touched)}", str(patch)]
    # Its helpers need Debian's Python, which has their modules, not one that the user put before it.
    env = dict(os.environ, PATH=f"/usr/bin:{os.environ['PATH']}")
    out = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, check=False)
    excused = 0
    for line in out.stdout.splitlines():
        m = re.match(r"(?:(\S+?):\d+: )?.*?(ERROR|WARNING|CHECK):(\w+):", line)
        if not m:
            continue
        # Complaints about the patch as a whole name the patch, not a file of the kernel.
        where = [m[1]] if m[1] in touched else touched
        if m[3] == "FILE_PATH_CHANGES":
            where = re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)", patch.read_text(), re.M)
        if not all(any(m[3] == kind and re.match(pattern, f) for kind, pattern in allowed()) for f in where):
            raise FormError(f"{patch.name}: checkpatch: {line}")
        excused += 1
    if out.returncode and not excused:
        raise FormError(f"{patch.name}: checkpatch failed\n{out.stdout}{out.stderr}")
    return excused


def _recipients(tree: Path, patch: Path) -> list[str]:
    """Addresses from get_maintainer.pl, without those that git history suggests."""
    argv = ["perl", "scripts/get_maintainer.pl", "--nogit", "--nogit-fallback", "--norolestats", str(patch)]
    out = subprocess.run(argv, cwd=tree, capture_output=True, text=True, check=True).stdout
    found = sorted({m[0].lower() for line in out.splitlines() if (m := re.search(r"[\w.+-]+@[\w.-]+", line))})
    if not [a for a in found if a != "linux-kernel@vger.kernel.org"]:
        raise FormError(f"{patch.name}: get_maintainer.pl names nobody")
    return found


def _fixes(tree: Path, patch: Path, text: str) -> list[str]:
    """What to do about ``Fixes:``; nothing if the patch has none, or if ``tree`` knows the commit."""
    notes = []
    for m in PLACEHOLDER.finditer(text):
        found = _first_commit(tree, m[1], m[2])
        what = f'put in "Fixes: {found}"' if found else "look the commit up in a tree with history"
        notes.append(f"{patch.name}: Fixes: is a placeholder: {what} ({m[0].split('(', 1)[1]}")
    for line in re.findall(r"^Fixes: .*", text, re.M):
        if not line.startswith("Fixes: FIXME") and not re.match(r'Fixes: [0-9a-f]{12,40} \(".+"\)$', line):
            raise FormError(f"{patch.name}: {line}: not a commit")
        if line.startswith("Fixes: FIXME") and not PLACEHOLDER.match(line):
            raise FormError(f"{patch.name}: {line}: does not say how to find the commit")
    return notes


def _first_commit(tree: Path, needle: str, path: str) -> str | None:
    """The first commit that adds ``needle`` to ``path``, as Fixes: needs it; None if a tree has no history."""
    argv = [
        "git",
        "-C",
        str(tree),
        "log",
        "--reverse",
        "--abbrev=12",
        '--format=%h ("%s")',
        f"-S{needle}",
        "--",
        path,
    ]
    out = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    # The import of a package adds everything, and is not a kernel commit.
    return out[0] if out and "linux-source" not in out[0] else None
