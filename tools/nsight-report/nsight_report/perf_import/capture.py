# SPDX-License-Identifier: GPL-2.0-only
"""The capture directory: perf.data unchanged, and the files that the recorder would have written."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import clocks
from .. import manifest as manifests
from ..capture import perf_data
from ..capture.perf_data import Decoded
from ..clocks import ClockMap, clock_readings
from ..errors import BadInput, OutputError, UsageError
from ..losses import Ledger
from . import clock, messages, sockets
from .advice import CORES, MESSAGES

I64 = npt.NDArray[np.int64]
INTEL_PT = 1  # PERF_AUXTRACE_INTEL_PT
# The same table as the recorder's: numbers of system calls depend on the machine, not on the kernel.
_SYSCALLS = Path(__file__).parent


@dataclass(frozen=True)
class Imported:
    """What was made: the directory, its mode, the number of message events, and what is not known."""

    capture: Path
    mode: str
    events: dict[str, int]
    losses: list[dict[str, Any]]


def import_perf_data(
    path: Path, output: Path | None = None, beside: Path | None = None, listed: Sequence[Path] = ()
) -> Imported:
    """Make a capture of the perf.data ``path`` (or the directory of perf record --kcore).

    ``output`` defaults to the name with .nsight instead of .data, in the same directory; ``beside`` is a clock.tsv that
    nsight-clock wrote meanwhile, ``listed`` are files that ``ss -tunae`` wrote. Raises BadInput if the recording lacks
    something that a capture needs, UsageError if ``output`` exists.
    """
    if not path.exists():
        raise BadInput(f"{path}: no such file", "give the perf.data that perf record wrote")
    capture = output if output is not None else path.with_suffix(".nsight")
    if capture.exists() or capture.is_symlink():
        raise UsageError(f"{capture}: exists", "remove it, or name another with -o")
    decoded, wide = perf_data.load_wide(path)
    mode = _mode(decoded)
    _check_messages(path, decoded, wide)
    ledger = Ledger("record")
    try:
        scratch = tempfile.mkdtemp(prefix=f".{capture.name}.", dir=capture.parent)
    except OSError as error:
        raise OutputError(f"{capture.parent}: {error.strerror}", "name another place with -o") from None
    directory = Path(scratch)
    try:
        made = _fill(directory, path, decoded, wide, mode, beside, sockets.load(listed), ledger)
        directory.chmod(0o777 & ~_umask())
        directory.rename(capture)
    except OSError as error:
        raise OutputError(
            f"{capture}: {error.strerror}", "free some space, or name another place with -o"
        ) from None
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return Imported(capture, mode, {k: v for k, v in asdict(made).items() if v}, ledger.table().to_pylist())


def _mode(decoded: Decoded) -> str:
    info = decoded.info
    if info["auxtrace_bytes"] and info["auxtrace_type"] == INTEL_PT:
        return "intel-pt"
    return "tracepoints"


def _check_messages(path: Path, decoded: Decoded, wide: npt.NDArray[np.void]) -> None:
    """Raise BadInput unless there are messages to explain, and something that shows what cores did."""
    recorded = {event["name"]: event for event in decoded.info["events"]}
    missing = [name for name in ("sock:sock_data_read", "sock:sock_data_queued") if name not in recorded]
    if missing:
        formats = [e for e in decoded.info["events"] if e["fate"] == "no format"]
        if formats:
            raise BadInput(
                f"{path}: the formats of its tracepoints are missing, so its events cannot be decoded",
                "perf writes them when it ends: stop it with SIGINT, not SIGKILL, and copy the whole file",
            )
        raise BadInput(
            f"{path}: no {' and no '.join(missing)} in it: nothing shows when a message came and was read",
            MESSAGES,
        )
    if not len(wide[wide["kind"] == perf_data.WIDE_CODE["sock_data_read"]]):
        bad = recorded["sock:sock_data_read"]
        if bad["fate"] == "bad format":
            raise BadInput(
                f"{path}: the fields of its sock:sock_data_read differ from those of kernel-patches/net",
                "use the series of this release",
            )
        raise BadInput(
            f"{path}: no message was read during the recording",
            "was there traffic? a --filter of the events may have been too narrow",
        )
    if "sched:sched_switch" not in recorded and _mode(decoded) != "intel-pt":
        raise BadInput(f"{path}: nothing shows what the cores did", CORES)


def _fill(
    directory: Path,
    path: Path,
    decoded: Decoded,
    wide: npt.NDArray[np.void],
    mode: str,
    beside: Path | None,
    listed: tuple[I64, npt.NDArray[np.uint64]],
    ledger: Ledger,
) -> messages.Counts:
    text = clock.clock_tsv(decoded, wide, str(path), beside, ledger)
    (directory / "clock.tsv").write_text(text)
    clock_map, _lost = clocks.build(
        clock_readings.parse(text.encode(), str(path))
    )  # the report shows them again
    known = ClockMap(clock_map)

    def to_monotonic(ns: I64, domain: str) -> tuple[I64, npt.NDArray[np.bool_]]:
        if domain != "monotonic" and domain not in known.domains:
            return np.zeros(len(ns), np.int64), np.zeros(len(ns), bool)
        converted, _error, good = known.convert_masked(ns, domain, "monotonic")
        return converted, good

    names = _syscall_names(decoded)
    counts = messages.write_events(
        directory / "events.tsv", decoded, wide, to_monotonic, names, listed, ledger
    )
    if not counts.reads:
        raise BadInput(
            f"{path}: the clocks of no message are known",
            "timekeeping:timekeeping_update has to be recorded for as long as the messages",
        )
    _unknowable(ledger, decoded, mode)
    _link(path, directory / "perf.data")
    _write_manifest(directory, path, decoded, mode, names, known, to_monotonic, ledger)
    return counts


def _unknowable(ledger: Ledger, decoded: Decoded, mode: str) -> None:
    """Enter what no recording without BPF contains."""
    ledger.add("sent_messages_not_recorded", 1)
    ledger.add("network_namespaces_not_recorded", 1)
    ledger.add("reads_past_socket_queue", 1)
    if decoded.info["auxtrace_bytes"] and mode != "intel-pt":
        ledger.add("trace_data_of_another_kind", 1)


def _link(path: Path, target: Path) -> None:
    """perf.data without a second copy if the file system allows it: perf renames old recordings, it does not rewrite them."""

    def one(source: str, destination: str) -> None:
        try:
            os.link(source, destination)
        except OSError:
            shutil.copy2(source, destination)

    if path.is_dir():
        shutil.copytree(path, target, copy_function=one)
    else:
        one(str(path.resolve()), str(target))


def _syscall_names(decoded: Decoded) -> dict[str, str]:
    arch = decoded.info["arch"]
    table = _SYSCALLS / f"syscalls_{arch}.txt"
    if not arch.replace("_", "").isalnum() or not table.is_file():
        return {}
    lines = table.read_text().splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def _write_manifest(
    directory: Path,
    path: Path,
    decoded: Decoded,
    mode: str,
    names: dict[str, str],
    known: ClockMap,
    to_monotonic: Any,
    ledger: Ledger,
) -> None:
    info = decoded.info
    edges = np.array([info["first_ts"], info["last_ts"]], np.int64)
    mono, good = to_monotonic(edges, decoded.clock)
    begin, end = ({"monotonic_ns": int(mono[i])} if good[i] else {} for i in (0, 1))
    if "realtime" in known.domains:
        for stamp, at in ((begin, 0), (end, 1)):
            wall, _error, ok = known.convert_masked(mono[at : at + 1], "monotonic", "realtime")
            if good[at] and ok[0]:
                stamp["realtime_ns"] = int(wall[0])
    content = {
        "format": manifests.FORMAT,
        "version": 1,
        "state": "cut" if info["cut"] else "complete",
        "cut": ["perf: it did not end by itself"] if info["cut"] else [],
        "mode": mode,
        "start": begin,
        "stop": end,
        "host": {
            "hostname": info["hostname"],
            "kernel": info["osrelease"],
            "machine": info["arch"],
            "n_cpus": info["nrcpus_online"],
        },
        "command": ["nsight-report", "import", path.name],
        "tools": {"perf": {"version": info["perf_version"], "argv": info["cmdline"]}},
        "syscall_names": names,
        "imported": {"from": path.name, "losses": ledger.table().to_pylist()},
    }
    (directory / "manifest.json").write_text(json.dumps(content, indent=1))


def _umask() -> int:
    value = os.umask(0o22)
    os.umask(value)
    return value
