# SPDX-License-Identifier: GPL-2.0-only
"""Which stored tables this user made: a capture from elsewhere may contain tables with any forged diagnosis.

A stage's entry and the content of its tables are authenticated (HMAC-SHA256) with a key that never leaves the
user's state directory. Tables of others are made again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from .. import files
from ..errors import BadInput

_BYTES = 32


def mark(entry: dict[str, Any]) -> str:
    """Seal of an entry of stages.json: hexadecimal, constant as long as this user's key stays the same."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return hmac.new(_key(), text.encode(), hashlib.sha256).hexdigest()


def is_marked(entry: dict[str, Any], found: object) -> bool:
    """Whether ``found`` is this user's seal of ``entry``."""
    return isinstance(found, str) and hmac.compare_digest(
        mark(entry).encode(), found.encode("utf-8", "replace")
    )


def digest(path: Path) -> str:
    """SHA-256 of a file's content. Raises OSError, and BadInput if it is not a regular file."""
    with files.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _key() -> bytes:
    """This user's key, made if there is none; a key for this process only if it cannot be stored."""
    made = os.urandom(_BYTES)
    try:
        directory = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "nsight"
        # Per user: sudo may leave HOME unchanged.
        path = directory / f"tables-{os.geteuid()}.key"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _make(path, made)
        with files.opened(path) as file:
            status = os.fstat(file.fileno())
            key = file.read(_BYTES + 1)
    except (OSError, RuntimeError, BadInput):  # RuntimeError: no home directory
        return made
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return key if private and len(key) == _BYTES else made


def _make(path: Path, key: bytes) -> None:
    """Writes the key completely or not at all; the first writer wins."""
    partial = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)
    except FileExistsError:
        pass
    finally:
        partial.unlink(missing_ok=True)
