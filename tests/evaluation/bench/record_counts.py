# SPDX-License-Identifier: GPL-2.0-only
"""What the BPF recorder's files say was produced and lost, and whether the records in them are the rest.

The programs count what they produce and lose; the recorder puts these counts into the files once a second and at the end.
nsight-rawdata counts the records that it finds in the same files.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RAWDATA = ROOT / "tools/nsight-report/native/nsight-rawdata"
# tools/bpf/record.h: struct nsr_file, struct nsr_block, struct nsr_tally, NSR_COUNTS and NSR_END, N_COUNTS
_FILE_BYTES, _BLOCK, _TALLY = 32, struct.Struct("<IHHIIQQ"), struct.Struct("<QQQ")
_COUNTS, _END, _N_COUNTS = 2, 3, 5
_MESSAGE, _SEND = 0x80, 3
#: Losses of nsight-rawdata that are not about whether a record is there.
_WHAT_RECORDS_SAY = (
    "steal_without_place",
    "saturated",
    "enters_missing",
    "switches_untraced",
    "wake_ups_untraced",
)


class RecordCounts:
    """Counts of the files in ``directory``, while they grow: by file, then by type."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._at: dict[Path, int] = {}
        self._of: dict[Path, dict[int, tuple[int, int]]] = {}
        self._ended: set[Path] = set()

    def read(self) -> None:
        """Follow the files from block to block to their ends."""
        for path in self._directory.glob("*.records"):
            at, size = self._at.get(path, _FILE_BYTES), path.stat().st_size
            with open(path, "rb") as file:
                while at + _BLOCK.size <= size:
                    file.seek(at)
                    _, kind, _, stored, *_ = _BLOCK.unpack(file.read(_BLOCK.size))
                    if at + _BLOCK.size + stored > size:
                        break
                    if kind in (_COUNTS, _END):
                        tallies = file.read((stored - 8 * _N_COUNTS) // _TALLY.size * _TALLY.size)
                        self._of[path] = {
                            t: (produced, lost) for t, produced, lost in _TALLY.iter_unpack(tallies)
                        }
                    if kind == _END:
                        self._ended.add(path)
                    at += _BLOCK.size + stored
            self._at[path] = at

    def produced(self) -> int:
        """Records of all types that the programs produced, lost ones included."""
        return sum(produced for types in self._of.values() for produced, _ in types.values())

    def lost(self) -> int:
        """Records that found no room in a ring."""
        return sum(lost for types in self._of.values() for _, lost in types.values())

    def bytes(self) -> int:
        """Of the files, as far as they were read."""
        return sum(self._at.values())

    def wrong(self, decoded: Path) -> Iterator[str]:
        """What does not agree with the records in the files. ``decoded``: a new directory."""
        for path in self._at.keys() - self._ended:
            yield f"{path.name}: no counts at the end"
        decoded.mkdir()
        # Events and timestamps of 10^8 records would take 15 GB; all records are read for intervals, too.
        subprocess.run([RAWDATA, "--only", "intervals", self._directory, decoded], check=True)
        found = json.loads((decoded / "perf-events.json").read_text())
        for row in found["lost"]:
            if row["missing"]:
                yield f"core {row['cpu']}, {row['type']}: {row['missing']:,} neither written nor counted as lost"
        expected = {"lost_records": self.lost()}
        for name, n in found["losses"].items():
            if n != expected.get(name, 0) and name not in (
                "steal_without_place",
                "saturated",
                "enters_missing",
                "switches_untraced",
                "wake_ups_untraced",
            ):
                yield f"nsight-rawdata: {name} is {n:,}, not {expected.get(name, 0):,}"

    def wrong_sends(self, sent: int) -> Iterator[str]:
        """Whether the programs produced a record for each of the datagrams that the generator sent."""
        kinds: Counter[int] = Counter()
        for types in self._of.values():
            for kind, (produced, _) in types.items():
                kinds[kind >> 2 if kind >= _MESSAGE else 0] += produced
        if (found := kinds[_MESSAGE >> 2 | _SEND]) != sent:
            yield f"{found:,} sends were produced, the generator sent {sent:,}"
