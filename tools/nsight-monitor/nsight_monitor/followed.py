# SPDX-License-Identifier: GPL-2.0-only
"""Filters that name an interface, a network namespace or a cgroup: which one has that name now."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from nsight_record import cgroups, netns
from nsight_record.errors import RecordError

#: In place of a number if nothing has the name: an index or inode number of a namespace, and that of a cgroup.
GONE, GONE64 = (1 << 32) - 1, (1 << 64) - 1
_LOOK_S = 0.5
_OWN = Path("/proc/thread-self/ns/net")


class Followed:
    """The filters --iface, --netns and --cgroup of ``args``, each looked up again and again. ``space``: the selected network
    namespace, or that of this process; ``cookie``: its cookie, 0 if that is not known."""

    def __init__(self, args: argparse.Namespace, space: netns.Netns, cookie: int) -> None:
        self._names = {
            "--netns": args.netns or "",
            "--iface": args.iface or "",
            "--cgroup": args.cgroup or "",
        }
        self._space, self._cookie = space, cookie
        self._named = bool(args.netns) and any(n.label == args.netns for n in netns.named())

    def __bool__(self) -> bool:
        return any(self._names.values())

    def numbers(self) -> dict[str, tuple[int, ...]]:
        """By option: index; inode number and cookie; inode number. Zeros: the option is not given."""
        space, index = self._look()
        return {"--iface": (index,), "--netns": space, "--cgroup": (self._group(),)}

    def _look(self) -> tuple[tuple[int, int], int]:
        """Number and cookie of the namespace, and index of the interface there."""
        same = (self._space.inum, self._cookie)
        if not self._names["--netns"]:
            return (same if self._names["--iface"] else (0, 0)), self._index()
        if not self._named and not self._space.path:
            return same, 0  # only its number is known: nothing shows whether it still exists
        for path in self._paths():
            try:
                with _inside(path):
                    inum, cookie, index = _OWN.stat().st_ino, _cookie(), self._index()
            except OSError:
                continue
            if self._named or (inum == same[0] and (not self._cookie or cookie == self._cookie)):
                self._space = netns.Netns(self._space.label, inum, path)
                return (inum, cookie), index
        if not self._named:
            self._space = netns.Netns(self._space.label, GONE, None)  # it cannot come back
        return (GONE, 0), GONE if self._names["--iface"] else 0

    def _paths(self) -> Iterator[Path]:
        """Ways into the namespace. Of one that was given by process or number, the process may have ended before others."""
        if self._named:
            yield from (n.path for n in netns.named() if n.label == self._names["--netns"] and n.path)
        elif self._space.path:
            yield self._space.path
            yield from (n.path for n in netns.everywhere() if n.inum == self._space.inum and n.path)

    def _index(self) -> int:
        if not self._names["--iface"]:
            return 0
        try:
            return socket.if_nametoindex(self._names["--iface"])
        except OSError:
            return GONE

    def _group(self) -> int:
        if not self._names["--cgroup"]:
            return 0
        try:
            return cgroups.directory(self._names["--cgroup"]).stat().st_ino
        except (OSError, RecordError):
            return GONE64

    @contextlib.contextmanager
    def watched(self, send: Callable[[str], object]) -> Iterator[None]:
        """Until the end of the block, ``send`` gets a line for nsight-histograms whenever a number changed, and
        standard error says what happened."""
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(send, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _watch(self, send: Callable[[str], object], stop: threading.Event) -> None:
        before: dict[str, tuple[int, ...]] = {}
        while not stop.is_set():
            now = self.numbers()
            if now != before:
                flat = (*now["--iface"], *now["--netns"], *now["--cgroup"])
                try:
                    send(" ".join(map(str, flat)) + "\n")
                except (OSError, ValueError):
                    return  # it has ended
                for option, name in self._names.items():
                    if name and before and now[option] != before[option]:
                        _say(f"{option} {name}", now[option][0], before[option][0])
            before = now
            stop.wait(_LOOK_S)


def _say(what: str, now: int, before: int) -> None:
    if now in (GONE, GONE64):
        said = f"warning: {what} does not exist any more: nothing is measured while it does not"
    elif before in (GONE, GONE64):
        said = f"{what} exists again: it is measured from now on"
    else:
        said = f"{what} is another one now: that is measured from now on"
    print(said, file=sys.stderr, flush=True)


def _cookie() -> int:
    try:
        return netns.cookie()
    except OSError:
        return 0


@contextlib.contextmanager
def _inside(path: Path) -> Iterator[None]:
    """This thread is in that namespace meanwhile, and no longer: it would keep the namespace alive."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        netns.enter(path)
        try:
            yield
        finally:
            netns.enter(Path(f"/proc/self/fd/{home}"))
    finally:
        os.close(home)
