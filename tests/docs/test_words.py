# SPDX-License-Identifier: GPL-2.0-only
"""Former words of this project, which were replaced by the field's terms, do not come back."""

from __future__ import annotations

import re
import subprocess

import pytest

from conftest import ROOT

#: Files with other rules: vendored, sent to other projects, hostile on purpose, or intentionally old.
ELSEWHERE = re.compile(
    r"kernel-patches/|tools/nsight-decode/libipt/|/vendor/|/corpus/|\.xz$|CHANGELOG|kernel-functions\.csv|test_words"
)
EVERYWHERE = re.compile(
    r"\b(lanes?|folders?|stretch(es)?|cures?|target slice|reference slice|how sure|"
    r"wake-up not seen|took turns|made up for elsewhere|late interrupt|core wake-up|poll put off|state off the core)\b",
    re.IGNORECASE,
)
#: Only in documents: code uses these words in names of columns, or with another meaning.
DOCUMENTS = re.compile(
    r"(?<![\w`-])stamps?(?![\w`.-])|\b(of whose|is told|are told|cannot see|number of a message|stood still)\b",
    re.IGNORECASE,
)


def tracked() -> list[str]:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        name
        for name in names.splitlines()
        if not ELSEWHERE.search(name) and (ROOT / name).is_file() and not (ROOT / name).is_symlink()
    ]


@pytest.mark.parametrize(
    ("old", "names"),
    [
        (EVERYWHERE, r""),
        (DOCUMENTS, r"^(README|CONTRIBUTING|Documentation/.*)\.(md|[18])$|^tools/.*/(losses|advice)\.csv$"),
    ],
    ids=["everywhere", "documents"],
)
def test_former_words_are_gone(old: re.Pattern[str], names: str) -> None:
    found = [
        f"{name}:{number}: {match[0]}"
        for name in tracked()
        if re.search(names, name)
        for number, line in enumerate((ROOT / name).read_text("utf-8", "replace").splitlines(), 1)
        if (match := old.search(line))
    ]
    assert not found
