#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Prepare a series for sending with b4, on a branch of a clone of its tree, and write the messages; nothing is sent.

``send.py SERIES --tree DIR --out FOLDER``: SERIES is timekeeping, net-fix, net or perf. The branch
``b4/nsight-SERIES`` is created on the commit that is checked out in DIR. It has the patches, the cover
letter, and the recipients that get_maintainer.pl lists for each patch. The sender becomes the author; signing
and sending are left to the sender.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import sources

SERIES = (*sources.SERIES, "perf")
#: Prefixes that the trees want in the subject, besides those that b4 adds.
PREFIXES = {"net-fix": "net", "net": "RFC net-next"}


class SendError(Exception):
    """Something is missing; the message says how to get it."""


#: For the dry run: kernel.org's endpoint would first require signatures, which only the sender can make.
SMTP = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "sendemail.smtpserver",
    "GIT_CONFIG_VALUE_0": "localhost",
}


def run(tree: Path, *argv: str, env: dict[str, str] | None = None) -> str:
    """Run a command in ``tree``; returns its output."""
    done = subprocess.run(
        argv,
        cwd=tree,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SendError(f"{' '.join(argv[:3])}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout + done.stderr


def cover(found: list[Path]) -> str:
    """Title, empty line and text of the cover letter; for a single patch only the title."""
    path = found[0] if len(found) == 1 else found[0].parent / "0000-cover-letter.patch"
    head, _, body = path.read_text().partition("\n\n")
    subject = re.search(r"^Subject: \[[^]]*\] (.*)", head, re.M | re.S)
    assert subject
    title = re.sub(r"\n\s*", " ", subject[1].split("\nMIME-Version")[0])
    # After the text comes the list that git format-patch generates.
    text = re.split(r"^NSight developers [(]", body, maxsplit=1, flags=re.M)[0]
    return title if len(found) == 1 else f"{title}\n\n{text}"


def prepare(series: str, tree: Path, out: Path) -> str:
    """Make the branch and the messages; returns b4's output of the last step."""
    found = sources.patches(series, next(iter(sources.bases().values())))
    for key in ("user.name", "user.email"):
        known = subprocess.run(["git", "config", key], cwd=tree, capture_output=True, text=True, check=False)
        if not known.stdout.strip():
            raise SendError(f"{tree}: git does not know who sends (hint: git config {key} ...)")
    branch = f"b4/nsight-{series}"
    base = run(tree, "git", "rev-parse", "HEAD").strip()
    # The cover letter is kept in the configuration: no editor, and no separate commit.
    run(tree, "git", "config", "b4.prep-cover-strategy", "branch-description")
    run(tree, "b4", "prep", "-n", f"nsight-{series}", "-f", base)
    run(tree, "git", "am", "-q", "-3", *map(str, found))
    run(tree, "git", "-c", "core.editor=true", "rebase", "-q", "--exec",
        "git commit -q --amend --no-edit --reset-author", base)  # fmt: skip
    run(tree, "git", "config", f"branch.{branch}.description", cover(found))
    run(tree, "b4", "prep", "--auto-to-cc")
    if series in PREFIXES:
        run(tree, "b4", "prep", "--set-prefixes", *PREFIXES[series].split())
    return run(tree, "b4", "send", "--dry-run", "--no-sign", "-o", str(out.resolve()), env=SMTP)


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    p.add_argument("series", choices=SERIES)
    p.add_argument(
        "--tree", type=Path, required=True, metavar="DIR", help="a clone, at the commit to send from"
    )
    p.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for the messages")
    options = p.parse_args()
    try:
        if not shutil.which("b4"):
            raise SendError("b4 is not installed (hint: make deps-send)")
        print(prepare(options.series, options.tree, options.out), end="")
    except SendError as e:
        print(f"send: error: {e}", file=sys.stderr)
        return 1
    print(
        f"Nothing was sent. Read {options.out}, then in {options.tree}, on the branch b4/nsight-{options.series}:\n"
        "  git rebase --signoff HEAD~N      # only who has read and understood every line signs\n"
        "  b4 send"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
