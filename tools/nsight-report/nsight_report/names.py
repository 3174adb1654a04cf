# SPDX-License-Identifier: GPL-2.0-only
"""Names that come from a capture (comm, symbols, host): made safe to show; kernel threads are grouped by kind.

A thread can choose any name: terminal escapes, bidirectional overrides, new lines, markup.
HTML escaping is done in the template; this removes what no output should contain.
"""

from __future__ import annotations

import re

#: Separator between the functions of a call path.
ARROW = " > "

_KTHREAD = re.compile(r"^(ksoftirqd|kworker|migration|cpuhp|rcuop|rcuog|rcuos|rcuc|idle_inject|irq|napi)/.*$")


def last_callers(path: str, n: int = 4) -> str:
    """The last functions of a path; what is left out shows as dots.

    >>> last_callers("main > loop > serve > lookup > asm_exc_page_fault"), last_callers("main > serve")
    ('... > loop > serve > lookup > asm_exc_page_fault', 'main > serve')
    """
    names = path.split(ARROW)
    return path if len(names) <= n else ARROW.join(["...", *names[-n:]])


def printable(name: object, limit: int = 80) -> str:
    """``name`` with every unprintable character written as ``\\xNN`` or ``\\uNNNN``.

    Longer names are cut to ``limit`` characters and end with an ellipsis.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    text = str(name)
    if len(text) <= limit and text.isprintable():
        return text
    out = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text[: limit + 1]
    )
    return out if len(out) <= limit else out[: limit - 1] + "…"


def readable(value: object) -> object:
    """A text at full length with every unprintable character written out, for files that people read too; other values as they are."""
    return printable(value, 10 * len(value)) if isinstance(value, str) else value


def thread_name(comm: str) -> str:
    """The name of a thread in anomalies: kernel threads of a core, a pool or a work item share one name.

    >>> thread_name("kworker/u8:3"), thread_name("nginx")
    ('kworker', 'nginx')
    """
    found = _KTHREAD.match(comm)
    return found[1] if found else comm
