# SPDX-License-Identifier: GPL-2.0-only
"""Names that come from a capture (comm, symbols, host) made safe to show.

A thread may call itself anything: terminal escapes, bidirectional overrides, new lines, markup.
HTML escaping is the template's work; this removes what no output should carry.
"""

from __future__ import annotations


def printable(name: object, limit: int = 80) -> str:
    """``name`` with every unprintable character written as ``\\xNN`` or ``\\uNNNN``.

    Longer names are cut to ``limit`` characters and end in an ellipsis.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    out = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in str(name)[: limit + 1]
    )
    return out if len(out) <= limit else out[: limit - 1] + "…"
