# SPDX-License-Identifier: GPL-2.0-only
"""The bpftrace command line: which script this kernel can run, filters, buffers."""

from __future__ import annotations

import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from .errors import Missing, Usage
from .progress import printable

SCRIPT = "nsight-record.bt"
LEGACY_SCRIPT = "nsight-record-legacy.bt"
LWIP_SCRIPT = "nsight-lwip.bt"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+@-]+")
SYSTEMS_LWIP = "system"  # value of --lwip: the library of this machine
LIBRARIES = Path("/usr/lib")
LWIP_LIBRARY = "/usr/lib/x86_64-linux-gnu/liblwip.so.0"  # the path in the script itself
FIRST_LINE = b"#nsight-events "
LAST_LINE = b"\n#end"

# The scripts handle it: they stop producing, deliver buffered events, and end. At SIGINT, bpftrace itself
# drops what it has not read yet.
DRAIN_SIGNAL = signal.SIGCONT

# Tracepoints that the plain script needs besides old ones; kernels before 6.3 lack them.
NEEDED_TRACEPOINTS = ("sock/sk_data_ready", "sock/sock_recv_length", "sock/sock_send_length")

# Pages per core of bpftrace's ring buffer. Its reader falls behind for tens of ms when the
# cores are busy; 100,000 records/s of some 200 bytes are 20 MB/s.
RB_PAGES = 4096
_RB_MEMORY_SHARE = 32

_COUNT = re.compile(rb"\n@n\[(\w+)\]: (\d+)")
_LOST = re.compile(rb"^(?:.*\b)?Lost (\d+) events", re.MULTILINE | re.IGNORECASE)
_KINDS = b"AHRSXTO"


@dataclass(frozen=True)
class Filters:
    """Which messages to timestamp; 0 is any. ``direction``: 0 both, 1 receive, 2 transmit."""

    port: int = 0
    pid: int = 0
    cgroup_id: int = 0
    ifindex: int = 0
    netns_inum: int = 0
    direction: int = 0

    def positional(self) -> list[str]:
        """The scripts' $1 to $7. The duration stays 0: the recorder ends the script. Every message is wanted."""
        values = (self.port, self.pid, self.cgroup_id, self.ifindex, self.netns_inum, self.direction, 0)
        return [str(v) for v in values]


def script_directory() -> Path:
    """Where the scripts are: in this package; in a checkout that is a link."""
    directory = Path(__file__).with_name("bpftrace")
    if directory.is_dir():
        return directory
    raise Missing("the bpftrace scripts of NSight are not where they were installed", "install NSight again")


def choose_script(tracefs: Path) -> str:
    """Depends on the kernel's features, never on its version: distributions port features back."""
    have_all = all((tracefs / "events" / t / "id").exists() for t in NEEDED_TRACEPOINTS)
    return SCRIPT if have_all else LEGACY_SCRIPT


def with_lwip(script: str, lwip: str, library: str) -> str:
    """Text of one program with the probes of both scripts; lwIP's probes attach to ``library``.

    One program, not two: all events are in one file, with one count for each kind, and end together. bpftrace
    wants definitions before the first probe, and accepts only one BEGIN and one END.
    """
    head, _, rest = lwip.partition("\nBEGIN\n")
    definitions = head[head.index("#pragma") :]
    probes, _, end = rest.partition("\n}\n")[2].partition("\nEND\n{\n")
    # bpftrace prints what is left in a map when it ends.
    cleared = "".join(f"{line}\n" for line in end.splitlines() if "(@lwip_" in line)
    script = script.replace("\nBEGIN\n", f"\n{definitions}\nBEGIN\n", 1)
    script = script.replace("\nEND\n{\n", f"\nEND\n{{\n{cleared}", 1)
    return script + probes.replace(LWIP_LIBRARY, library)


def installed_lwip() -> str:
    """lwIP's shared library in Debian: liblwip.so.0 (Debian 12), liblwip.so.2 (13)."""
    found = sorted(LIBRARIES.glob("*/liblwip.so.[0-9]"))
    return str(found[-1]) if found else LWIP_LIBRARY


def library(path: str) -> str:
    """``path``, absolute, in a form that is safe in a script. Raises Usage: a name could end the probe and
    begin another one."""
    resolved = str(Path(path).resolve())
    if not _PLAIN_PATH.fullmatch(resolved):
        raise Usage(
            f"--lwip {printable(resolved)}: bpftrace takes only letters, digits and / . _ + @ - in a path",
            "copy it to a directory with a plain name, or record with one mounted there",
        )
    return resolved


def argv(script: Path, filters: Filters, output: Path) -> list[str]:
    """bpftrace for a recording. With -o its output is fully buffered, standard output is line-buffered."""
    return ["bpftrace", "-o", str(output), str(script), *filters.positional()]


def environment(n_cpus: int, mem_available: int) -> dict[str, str]:
    """Buffer sizes for bpftrace, at most 1/32 of the available memory."""
    pages = RB_PAGES
    while pages > 64 and pages * os.sysconf("SC_PAGE_SIZE") * n_cpus > mem_available // _RB_MEMORY_SHARE:
        pages //= 2
    return {"BPFTRACE_PERF_RB_PAGES": str(pages), "BPFTRACE_MAP_KEYS_MAX": "65536"}


def find(path: str | None = None) -> str | None:
    """Where bpftrace is."""
    return shutil.which("bpftrace", path=path)


def is_attaching(pid: int, output: Path) -> bool:
    """Whether bpftrace has compiled the script and is loading its programs.

    Either it has printed that, or it holds a BPF program (newer versions print it only when they are done).
    """
    try:
        if output.stat().st_size:
            return True
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if str(entry.readlink()) == "anon_inode:bpf-prog":
                return True
    except OSError:
        pass
    return False


def has_started(output: Path) -> bool:
    """Whether every probe is attached: only then does bpftrace print the output of BEGIN."""
    try:
        with open(output, "rb") as f:
            return FIRST_LINE in f.read(4096)
    except OSError:
        return False


@dataclass
class Counts:
    """Events that the probes produced (``produced``, by their own count) and lines written."""

    produced: dict[str, int]
    written: dict[str, int]
    lost: int
    ended: bool

    def tally(self, data: bytes) -> None:
        """Add complete lines, each with the line break before it."""
        for kind in _KINDS:
            if n := data.count(b"\n" + bytes([kind]) + b"\t"):
                self.written[chr(kind)] = self.written.get(chr(kind), 0) + n
        # Heartbeats print growing counts, so the last of each kind is the final one.
        for name, n in _COUNT.findall(data):
            self.produced[name.decode()] = int(n)
        if b"ost " in data:
            self.lost += sum(int(n) for n in _LOST.findall(data))
        self.ended = self.ended or LAST_LINE in data

    def undelivered(self) -> int:
        """Events that were produced but not written."""
        kinds = [chr(k) for k in _KINDS]
        return sum(max(0, self.produced.get(k, 0) - self.written.get(k, 0)) for k in kinds)


def count(output: Path, log: Path) -> Counts:
    """Count the lines of every kind, and read the probes' own counts.

    Works on blocks, not line by line: the file can have tens of millions of lines.
    """
    found = Counts({}, {}, 0, False)
    carry = b"\n"
    try:
        with open(output, "rb") as f:
            while block := f.read(1 << 20):
                data = carry + block
                # Up to the last line break; the rest belongs to the next block.
                cut = max(data.rfind(b"\n"), 0) if len(data) < 1 << 22 else len(data)
                found.tally(data[:cut])
                carry = data[cut:]
        found.tally(carry)
        with open(log, "rb") as f:
            found.lost += sum(int(n) for n in _LOST.findall(f.read(1 << 20)))
    except OSError:
        pass
    return found
