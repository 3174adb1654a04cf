# SPDX-License-Identifier: GPL-2.0-only
"""The capture directory and its manifest.

The manifest is replaced as a whole (temporary file, fsync, rename), so that whoever reads
the directory, also after a crash, finds either the old or the new one and never half.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from .errors import OutputError

FORMAT = "nsight-capture"
VERSION = 1
MANIFEST = "manifest.json"
_BALLAST = ".reserve"
_BALLAST_BYTES = 256 * 1024


def default_name(hostname: str, local_time: str) -> str:
    """``nsight-HOST-TIME.nsight``; whatever could not stand in a file name is replaced."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in hostname)
    return f"nsight-{safe}-{local_time}.nsight"


class Capture:
    """An open capture directory.

    ``manifest`` is changed freely and written by ``save``. A small file holds space on the
    disk, so that the last manifest can be written even when the recording filled it.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path = path
        self.manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, "state": "recording"}
        try:
            if path.exists() or path.is_symlink():
                self._make_room(force)
            path.mkdir(parents=True, mode=0o755)
            with open(path / _BALLAST, "wb") as f:
                os.posix_fallocate(f.fileno(), 0, _BALLAST_BYTES)
        except OSError as e:
            raise OutputError(f"{path}: {e.strerror}", "choose a writable place with -o DIR") from e

    def _make_room(self, force: bool) -> None:
        """Remove what is there, if it is a capture (or empty) and the user asked for it."""
        if not force:
            raise OutputError(f"{self.path}: exists", "choose another name with -o, or --force to replace it")
        is_capture = (
            self.path.is_dir()
            and not self.path.is_symlink()
            and ((self.path / MANIFEST).is_file() or not any(self.path.iterdir()))
        )
        if not is_capture:
            raise OutputError(
                f"{self.path}: exists and is not a capture; --force replaces captures only",
                "choose another name with -o",
            )
        shutil.rmtree(self.path)

    def save(self) -> None:
        """Write the manifest; raises OutputError when the disk does not take it."""
        text = json.dumps(self.manifest, indent=1, ensure_ascii=True) + "\n"
        temporary = self.path / (MANIFEST + ".new")
        try:
            with open(temporary, "w", encoding="ascii") as f:
                f.write(text)
                f.flush()
                os.fsync(f.fileno())
            temporary.replace(self.path / MANIFEST)
        except OSError as e:
            temporary.unlink(missing_ok=True)
            raise OutputError(f"{self.path / MANIFEST}: {e.strerror}", "free disk space") from e

    def release_reserve(self) -> None:
        """Give the held space back: call before the last ``save``."""
        (self.path / _BALLAST).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What the recording may still write."""
        s = os.statvfs(self.path)
        return s.f_bavail * s.f_frsize

    def size(self, name: str) -> int:
        """Bytes of one file or directory of the capture; 0 when it is not there."""
        path = self.path / name
        try:
            if path.is_dir():
                return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
            return path.stat().st_size
        except OSError:
            return 0
