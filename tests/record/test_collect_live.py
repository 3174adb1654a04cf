# SPDX-License-Identifier: GPL-2.0-only
"""nsight-collect on the running kernel: every record that was produced is in a file, or counted as lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from bpftrace.message_traffic import ending
from machinery.made_up import record_files as rf
from machinery.testbed.ports import reserved
from nsight_record import collect

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live

PAD, SWITCH, SWITCH_SYSCALL, SYSCALL, TASK, EXIT = 1, 2, 3, 10, 12, 13
#: Threads that start, end or get a name, which messages need as well.
NAMES = {TASK, EXIT}
#: Units of the types below MESSAGE, in their order.
HEADER = (ROOT / "tools/bpf/record.h").read_text()
UNITS = (0, *(int(units) for units in re.findall(r"^\tX\(\w+, (\d+), ", HEADER, re.M)))
MESSAGE, SHORT = 0x80, 0x20
RECORDS, COUNTS, END = 1, 2, 3
ZSTD = 1
HANGS_S = 120


@dataclass
class File:
    """Contents of a file of records: ``present`` records by type, the last ``counts`` (produced, lost) by type."""

    present: Counter[int]
    counts: dict[int, tuple[int, int]]
    ended: bool
    compressed: int = 0  # blocks
    largest: int = 0  # bytes of a block's records

    def missing(self) -> dict[int, int]:
        """Records by type that were produced and are neither in the file nor counted as lost."""
        left = {t: produced - lost - self.present[t] for t, (produced, lost) in self.counts.items()}
        return {t: n for t, n in left.items() if n}


def read(path: Path, killed: bool = False) -> File:
    """Read an undamaged file. The file of a ``killed`` collector may end within a block; its complete records count."""
    data, at = path.read_bytes(), 32
    assert data[:8] == b"NSIGHTR1"
    file = File(Counter(), {}, False)
    while at < len(data) and not (killed and at + 32 > len(data)):
        mark, kind, flags, stored, size, *_ = struct.unpack_from("<IHHIIQQ", data, at)
        assert mark == 0x4B42534E
        assert stored <= size <= 1 << 20
        at += 32
        end = at + stored
        cut = killed and end > len(data)
        if kind == RECORDS:
            file.largest = max(file.largest, size)
            block = data[at:end]
            if cut:
                size = 0 if flags & ZSTD else len(block)
            elif flags & ZSTD:
                block = pa.decompress(block, size, "zstd", asbytes=True)
                file.compressed += 1
            unit = 0
            while unit < size - 15 * cut:
                word, second = struct.unpack_from("<QQ", block, unit)
                kind_of = word & 0xFF
                unit += 16 * units_of(kind_of, second)
                if kind_of != PAD and (unit <= size or not cut):
                    file.present[kind_of & ~SHORT if kind_of >= MESSAGE else kind_of] += 1
            assert cut or unit == len(block)
        elif not cut:
            rows = struct.iter_unpack("<QQQ", data[at : at + (stored - 40) // 24 * 24])
            file.counts = {kind_of: (produced, lost) for kind_of, produced, lost in rows}
            file.ended = kind == END
        at = end
    return file


def units_of(kind: int, second: int) -> int:
    """Units of 16 bytes of a record."""
    if kind == PAD:
        return second & 0xFFFFFFFF
    if kind < MESSAGE:
        return UNITS[kind]
    return 4 + 2 * (kind & 1) + (kind >> 1 & 1) - bool(kind & SHORT)


class Collector:
    """nsight-collect in the background; ``files`` by core when it has ended."""

    def __init__(self, directory: Path, *options: str, prefix: tuple[str, ...] = ()) -> None:
        program = collect.find()
        if os.geteuid():
            skip_or_fail("root", "BPF programs need root")
        if program is None:
            skip_or_fail("bpf", "nsight-collect is not built")
        self.directory = directory
        self.process = subprocess.Popen(
            [*prefix, str(program), *options, str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        for line in self.process.stdout:
            if line == "recording\n":
                return
        skip_or_fail("bpf", self.process.communicate()[1])

    def end(self, sig: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and final stdout."""
        self.process.send_signal(sig)
        out, err = self.process.communicate(timeout=HANGS_S)
        assert self.process.returncode != 1, err
        return self.process.returncode, out

    def files(self, killed: bool = False) -> dict[int, File]:
        return {
            int(p.stem.removeprefix("cpu-")): read(p, killed) for p in self.directory.glob("cpu-*.records")
        }


@contextlib.contextmanager
def datagrams() -> Iterator[tuple[int, Callable[[], None]]]:
    """Two threads send datagrams to themselves over loopback as fast as they can: the port, and a function that ends them."""
    with reserved() as (port,), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", port))
        server.settimeout(0.1)
        leave = threading.Event()

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.connect(("127.0.0.1", port))
                while not leave.is_set():
                    client.send(b"x" * 32)

        def receive() -> None:
            while not leave.is_set():
                try:
                    server.recv(64)
                except TimeoutError:
                    continue

        threads = [threading.Thread(target=f) for f in (send, receive)]
        for thread in threads:
            thread.start()

        def stop() -> None:
            leave.set()
            for thread in threads:
                thread.join()

        try:
            yield port, stop
        finally:
            stop()


@pytest.fixture
def traffic() -> Iterator[int]:
    """The port of ``datagrams``."""
    with datagrams() as (port, _):
        yield port


def wait_for_records(directory: Path, n_bytes: int) -> None:
    """Wait until the files of the cores have grown by ``n_bytes`` together."""

    def size() -> int:
        return sum(p.stat().st_size for p in directory.glob("cpu-*.records"))

    first, waited = size(), threading.Event()
    for _ in range(HANGS_S * 100):
        if size() >= first + n_bytes:
            return
        waited.wait(0.01)
    pytest.fail("nothing is recorded")


@pytest.mark.parametrize("options", [[], ["--compress"]], ids=["plain", "compressed"])
def test_every_record_is_in_the_file(tmp_path: Path, traffic: int, options: list[str]) -> None:
    run = Collector(tmp_path / "records", "--port", str(traffic), *options)
    wait_for_records(run.directory, 4 << 20)
    code, out = run.end()
    assert code == 0
    files = run.files()
    assert set(files) == set(range(os.cpu_count() or 1))
    for file in files.values():
        assert file.ended
        assert file.missing() == {}
        assert sum(lost for _, lost in file.counts.values()) == 0
        assert (file.compressed > 0) == bool(options)
    total = sum((f.present for f in files.values()), Counter())
    # Hand-off and read of every datagram, and context switches and softirqs of this test itself.
    assert total[SWITCH] > 0 and total[MESSAGE | 1 << 2] > 1000 and total[MESSAGE | 2 << 2] > 1000
    summary = json.loads(out)
    for core, file in files.items():
        assert {int(t): n for t, (*_, n) in summary[str(core)]["types"].items()} == dict(file.present)


def test_what_does_not_fit_while_the_reader_is_stopped_is_counted_exactly(
    tmp_path: Path, traffic: int
) -> None:
    """A ring of 64 KiB holds a thousandth of the data that arrives meanwhile."""
    run = Collector(tmp_path / "records", "--port", str(traffic), "--ring-kb", "64")
    wait_for_records(run.directory, 64 << 10)
    for _ in range(3):
        run.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(0.5)
        run.process.send_signal(signal.SIGCONT)
        wait_for_records(run.directory, 64 << 10)
    assert run.end()[0] == 0
    files = run.files().values()
    assert all(f.ended and f.missing() == {} for f in files)
    assert sum(lost for f in files for _, lost in f.counts.values()) > 1000


@pytest.mark.parametrize("options", [[], ["--compress"]], ids=["plain", "compressed"])
def test_what_came_while_the_reader_was_away_is_written_in_blocks_that_are_not_too_large(
    tmp_path: Path, traffic: int, options: list[str]
) -> None:
    run = Collector(tmp_path / "records", "--port", str(traffic), "--ring-kb", "65536", *options)
    wait_for_records(run.directory, 64 << 10)
    run.process.send_signal(signal.SIGSTOP)
    # Two cores fill some 50 MB a second when nothing else runs. The ring lasts for twice as long, and even a machine that is ten
    # times slower fills a block (1 MiB).
    threading.Event().wait(0.5)
    run.process.send_signal(signal.SIGCONT)
    wait_for_records(run.directory, 2 << 20)
    assert run.end()[0] == 0
    files = run.files().values()
    assert all(f.ended and f.missing() == {} for f in files)
    assert sum(lost for f in files for _, lost in f.counts.values()) == 0
    # Nor are the blocks too small: a chunk of this ring has half of it.
    assert max(f.largest for f in files) > (1 << 20) - 4096


def test_room_on_the_disk_that_was_not_needed_is_given_back(tmp_path: Path, traffic: int) -> None:
    run = Collector(tmp_path / "records", "--port", str(traffic))
    wait_for_records(run.directory, 8 << 20)
    assert run.end()[0] == 0
    for path in run.directory.iterdir():
        held = path.stat()
        assert held.st_blocks * 512 < held.st_size + (1 << 16)


def test_killed_reader_leaves_readable_files(tmp_path: Path, traffic: int) -> None:
    run = Collector(tmp_path / "records", "--port", str(traffic))
    wait_for_records(run.directory, 8 << 20)
    run.end(signal.SIGKILL)
    files = run.files(killed=True).values()
    for file in files:
        assert not file.ended
        # The last counts are older than the last records.
        assert all(n <= 0 for n in file.missing().values())
    assert sum(f.present.total() for f in files) > 10_000


def test_full_disk_ends_the_files_and_the_counts_tell_what_is_missing(
    tmp_path: Path, traffic: int, request: pytest.FixtureRequest
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "nodev", disk], check=True)
    request.addfinalizer(lambda: subprocess.run(["umount", disk], check=True))
    run = Collector(disk / "records", "--port", str(traffic))
    assert run.process.stderr
    assert "No space left on device" in run.process.stderr.readline()
    _fill(disk / "others")
    # Counts of each second fill what is left of each file's last page.
    unchanged_for(3, lambda: [path.stat().st_size for path in run.directory.iterdir()])
    code, out = run.end()
    assert code == 5
    cores = json.loads(out)
    assert sum(core["unwritten_bytes"] for core in cores.values()) > 0
    for number, file in run.files().items():
        assert file.ended
        types = cores[str(number)]["types"]
        assert {int(t): written for t, (*_, written) in types.items() if written} == dict(file.present)
    counts, records, lost = collect.count(_saved(tmp_path, out))
    assert records == sum(f.present.total() for f in run.files().values()) + lost
    assert lost > 0 and counts.ended


def _fill(path: Path) -> None:
    """Take what is left of the disk."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def unchanged_for(seconds: float, value: Callable[[], object]) -> None:
    """Wait until ``value`` has been the same for so long."""
    last, since = value(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.1)
        if (now := value()) != last:
            last, since = now, time.monotonic()


def _saved(directory: Path, text: str) -> Path:
    path = directory / "collect.log"
    path.write_text(text)
    return path


def test_read_that_also_takes_the_end_of_the_connection_has_its_own_bytes(tmp_path: Path) -> None:
    """The end takes a sequence number, which is none of the message's. After it, the kernel may have taken the reader's port
    from its socket."""
    with reserved() as (port,):
        run = Collector(tmp_path / "records", "--port", str(port))
        ending(port)
        assert run.end()[0] == 0
    _, stamps, _ = rf.decode(run.directory, tmp_path / "decoded", only="messages")
    reads, sends = (stamps[stamps["kind"] == rf.KINDS.index(letter)] for letter in "RS")
    sent = {(s["len"], s["seq"], s["lport"], s["rport"]) for s in sends}
    assert {(r["len"], r["seq"], r["rport"], r["lport"]) for r in reads} == sent
    assert sorted(reads["len"]) == [7, 8, 10]


def test_filters_are_decided_in_the_kernel(tmp_path: Path, traffic: int) -> None:
    with reserved() as (other,):
        run = Collector(tmp_path / "records", "--port", str(other), "--messages")
        quiet = Collector(tmp_path / "all", "--port", str(traffic), "--messages", "--tx")
        wait_for_records(quiet.directory, 1 << 20)
        assert run.end()[0] == quiet.end()[0] == 0
    assert all(f.present.keys() <= NAMES for f in run.files().values())
    stamps = sum((f.present for f in quiet.files().values()), Counter())
    of_messages = stamps.keys() - NAMES
    assert {kind >> 2 & 7 for kind in of_messages} == {3, 4}  # sent, and handed to the driver
    assert all(kind >= MESSAGE for kind in of_messages)


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        (["--port", "99999"], "99999 is not a number from 0 to 65535"),
        (["--ring-kb", "100"], "usage:"),
        ([], ""),
    ],
)
def test_bad_usage_says_so(tmp_path: Path, options: list[str], needle: str) -> None:
    program = collect.find()
    if program is None:
        skip_or_fail("bpf", "nsight-collect is not built")
    directory = tmp_path / "records"
    if not options:
        directory.mkdir()
        needle = "name a directory that is not there yet"
    done = subprocess.run([program, *options, directory], capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == (2 if options else 5)
    assert needle in done.stderr
    assert list(tmp_path.glob("records/*")) == []


@pytest.mark.parametrize("options", [[], ["--messages"]], ids=["activity", "messages"])
def test_threads_that_were_there_have_names(tmp_path: Path, options: list[str]) -> None:
    """Messages have the names of their threads, in mode Intel PT as well, where the recorder leaves out activity."""
    run = Collector(tmp_path / "records", "--port", "1", *options)
    subprocess.run(["sh", "-c", "echo named-later > /proc/self/comm"], check=True)
    assert run.end()[0] == 0
    assert any(b"named-later" in path.read_bytes() for path in run.directory.glob("cpu-*.records"))
    machine = read(tmp_path / "records" / "machine.records")
    assert machine.present[TASK] >= len(list(Path("/proc").glob("[0-9]*/task/[0-9]*"))) // 2
    assert b"kthreadd" in (tmp_path / "records" / "machine.records").read_bytes()
