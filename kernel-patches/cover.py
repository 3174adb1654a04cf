#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Print the cover letter of a series as b4 wants it: title, empty line, text, recipients.

``cover.py SERIES [FILE]`` writes it to FILE, so that it serves as editor of ``b4 prep --edit-cover``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import sources


def text(series: str) -> str:
    """Title and body of the newest base's cover letter, without what git format-patch added below."""
    base = next(iter(sources.bases()))
    letter = (sources.HERE / series / base / "0000-cover-letter.patch").read_text()
    head, _, body = letter.partition("\n\n")
    subject = re.search(r"^Subject: \[[^]]*\] (.*)", head, re.M | re.S)
    assert subject
    title = re.sub(r"\n\s*", " ", subject[1].split("\nMIME-Version")[0])
    return f"{title}\n\n{re.split(r'^NSight developers [(]', body, maxsplit=1, flags=re.M)[0]}"


def main() -> int:
    """Entry point."""
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in sources.SERIES:
        print(f"usage: cover.py {'|'.join(sources.SERIES)} [FILE]", file=sys.stderr)
        return 2
    if len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(text(sys.argv[1]))
    else:
        print(text(sys.argv[1]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
