# SPDX-License-Identifier: GPL-2.0-only
"""Two network namespaces joined by a veth pair, and the clean-up after runs that died."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .processes import BedError, run, wait_until

PREFIX = "nsight-tb"
NETNS_DIR = Path("/run/netns")
#: Directory that all beds of this machine share.
RUN_DIR = Path("/run/nsight-testbed")
SERVER4, CLIENT4 = "198.18.77.1", "198.18.77.2"  # RFC 2544 range, never routed
SERVER6, CLIENT6 = "fd77:6e73::1", "fd77:6e73::2"


def start_ticks(pid: int) -> str | None:
    """Start time of a process, which distinguishes it from a later one with the same pid; None if it has
    ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie holds no resources, and may stay until its parent waits for it.
    return None if fields[0] in "ZX" else fields[19]


def run_name() -> str:
    """Name of this run: prefix, pid and the start time of the process."""
    return f"{PREFIX}-{os.getpid()}-{start_ticks(os.getpid())}"


def run_dir() -> Path:
    """``RUN_DIR``, created if needed. Servers run as another user and must have access, whatever the umask
    is."""
    try:
        RUN_DIR.mkdir(exist_ok=True)
        RUN_DIR.chmod(0o755)
    except OSError as error:
        raise BedError(f"{RUN_DIR}: {error.strerror}; run this with sudo") from None
    return RUN_DIR


def _is_stale(name: str) -> bool:
    match = re.fullmatch(rf"{PREFIX}-(\d+)-(\d+)(-[a-z0-9]+)*", name)
    return match is not None and start_ticks(int(match[1])) != match[2]


def clean_stale() -> list[str]:
    """Remove namespaces and directories of runs whose process no longer lives; returns their names."""
    found = []
    for directory, remove in ((NETNS_DIR, delete_netns), (RUN_DIR, _remove_dir)):
        if directory.is_dir():
            for name in sorted(path.name for path in directory.iterdir()):
                if _is_stale(name):
                    remove(name)
                    found.append(name)
    return found


def _remove_dir(name: str) -> None:
    shutil.rmtree(RUN_DIR / name, ignore_errors=True)


def delete_netns(name: str) -> None:
    """Delete a namespace if it exists; its interfaces go with it.

    For a killed run that had its own mounts, only the file remains on which the namespace was mounted.
    """
    path = NETNS_DIR / name
    if os.path.lexists(path):
        try:
            run(["ip", "netns", "del", name])
        except BedError:
            if os.path.lexists(path):  # otherwise another run has just removed the same leftover
                raise


@dataclass(frozen=True)
class LinkOptions:
    """How the server's end of the link receives.

    By default, a veth's receive softirq runs in the sender's context on the sender's core. ``napi_cpu``:
    threaded NAPI, with its kernel thread on that core. ``rps_cpu``: receive packet steering, the softirq on
    that core. ``bridge_rps_cpu``: the server's address belongs to a bridge, whose packet steering uses that
    core: a packet arrives on one core and is handed off on another.
    """

    napi_cpu: int | None = None
    rps_cpu: int | None = None
    bridge_rps_cpu: int | None = None
    gro: bool = False


class Link:
    """Namespaces ``server`` and ``client`` with addresses on ``interface`` at either end."""

    def __init__(self, name: str) -> None:
        self.server = f"{name}-srv"
        self.client = f"{name}-cli"
        self.interface = f"srv{os.getpid()}"
        self.peer = f"cli{os.getpid()}"
        self.napi_tid: int | None = None

    def create(self, options: LinkOptions) -> None:
        """Make the namespaces and the link; ``delete`` undoes a partial creation too."""
        for netns in (self.server, self.client):
            run(["ip", "netns", "add", netns])
            run(["ip", "-n", netns, "link", "set", "lo", "up"])
        run(["ip", "link", "add", self.interface, "netns", self.server, "type", "veth",
             "peer", "name", self.peer, "netns", self.client])  # fmt: skip
        address = self.interface
        if options.bridge_rps_cpu is not None:
            address = f"br{os.getpid()}"
            run(["ip", "-n", self.server, "link", "add", address, "type", "bridge"])
            run(["ip", "-n", self.server, "link", "set", self.interface, "up", "master", address])
        for netns, interface, v4, v6 in (
            (self.server, address, SERVER4, SERVER6),
            (self.client, self.peer, CLIENT4, CLIENT6),
        ):
            run(["ip", "-n", netns, "addr", "add", f"{v4}/24", "dev", interface])
            run(["ip", "-n", netns, "addr", "add", f"{v6}/64", "dev", interface, "nodad"])
            run(["ip", "-n", netns, "link", "set", interface, "up"])
        if options.gro or options.napi_cpu is not None:
            # Without GRO a veth has no NAPI instance to make threaded.
            run(["nsenter", f"--net=/run/netns/{self.server}", "ethtool", "-K", self.interface, "gro", "on"])
            # veth also bypasses it for senders that segment in "hardware" (veth_skb_is_eligible_for_gro).
            run(["nsenter", f"--net=/run/netns/{self.client}", "ethtool", "-K", self.peer, "tso", "off"])
        if options.napi_cpu is not None:
            self._write_sysfs("threaded", "1")
            wait_until(self._find_napi, f"a NAPI thread of {self.interface}")
            assert self.napi_tid is not None
            os.sched_setaffinity(self.napi_tid, {options.napi_cpu})
        if options.rps_cpu is not None:
            self._write_sysfs("queues/rx-0/rps_cpus", f"{1 << options.rps_cpu:x}")
        if options.bridge_rps_cpu is not None:
            self._write_sysfs("queues/rx-0/rps_cpus", f"{1 << options.bridge_rps_cpu:x}", address)

    def delete(self) -> None:
        """Delete both namespaces, and with them the link."""
        for netns in (self.server, self.client):
            delete_netns(netns)

    def _write_sysfs(self, attribute: str, value: str, interface: str | None = None) -> None:
        # `ip netns exec` mounts the namespace's own sysfs, which the host's does not show.
        path = f"/sys/class/net/{interface or self.interface}/{attribute}"
        run(["ip", "netns", "exec", self.server, "tee", path], stdin=value)

    def _find_napi(self) -> bool:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    comm = (entry / "comm").read_text()
                except OSError:
                    continue
                if comm.startswith(f"napi/{self.interface}-"):
                    self.napi_tid = int(entry.name)
                    return True
        return False

    def inum(self) -> int:
        """Inode number of the server's namespace, as the tables' ``netns`` column has it."""
        return (NETNS_DIR / self.server).stat().st_ino


def require_root() -> None:
    """Raise BedError unless this process may make namespaces."""
    if os.geteuid():
        raise BedError("network namespaces need root; run this with sudo")
