# SPDX-License-Identifier: GPL-2.0-only
"""Programs of the checkout as another user sees them, who may not look into /root, where the checkout can be."""

from __future__ import annotations

from conftest import ROOT

NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
# In a mount namespace of its own; arguments below the checkout are changed, too.
_ELSEWHERE = """
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/source
mount --bind "$0" /mnt/source
for word; do
	shift
	case $word in "$0"/*) word=/mnt/source${word#"$0"} ;; esac
	set -- "$@" "$word"
done
exec "$@"
"""


def command(*user: str) -> tuple[str, ...]:
    """Put before a command that root is to run as ``user`` (a command that gives up root; by default NOBODY)."""
    return "unshare", "-m", "sh", "-ec", _ELSEWHERE, str(ROOT), *(user or NOBODY)
