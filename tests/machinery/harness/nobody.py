# SPDX-License-Identifier: GPL-2.0-only
"""Runs programs of the checkout as a user who has no access to /root, where the checkout may be."""

from __future__ import annotations

from conftest import ROOT

NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
# In a private mount namespace; arguments that are paths in the checkout are changed, too.
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
    """Prefix for a command that root should run as ``user`` (a command that drops root privileges; by default NOBODY)."""
    return "unshare", "-m", "sh", "-ec", _ELSEWHERE, str(ROOT), *(user or NOBODY)
