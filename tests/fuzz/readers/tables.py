# SPDX-License-Identifier: GPL-2.0-only
"""Stored tables that this user did not make: never trusted, and not a byte of them reaches the Parquet reader.

The first byte says whose store it was. In a stranger's store everything agrees except the mark: DIGEST in its stages.json
(up to the first zero byte) is replaced with that of the table after it. In the user's own store one file is replaced; ENTRY
in its stages.json is replaced with the contents of the user's entry, including the mark.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import guard

with guard.instrumented():
    from nsight_report import files, losses
    from nsight_report.stages import BY_NAME
    from nsight_report.tables import seal, store

DIRECTORY = guard.directory() / "tables"
TABLE, STAGE = "losses-clocks", "clocks"
OWN, DIGEST, ENTRY = 1, b"DIGEST", b"ENTRY"


def one(data: bytes) -> None:
    """Read a store that contains ``data``."""
    own, text, content = data[:1] and data[0] & OWN, *_cut(data[1:])
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    if own:
        _replaced(text, content)
    else:
        _stranger(text, content)


def _cut(data: bytes) -> tuple[bytes, bytes]:
    text, _, content = data.partition(b"\0")
    return text, content


def _stranger(text: bytes, content: bytes) -> None:
    DIRECTORY.mkdir()
    digest = hashlib.sha256(content).hexdigest().encode()
    (DIRECTORY / "stages.json").write_bytes(text.replace(DIGEST, digest))
    (DIRECTORY / f"{TABLE}.parquet").write_bytes(content)
    with _unread():
        found = store.Store(DIRECTORY)
        assert not any(found.entry(name) for name in BY_NAME), "a stranger's stage is believed"
        assert found.load(TABLE, "losses") is None and not found.holds(TABLE, "losses")


def _replaced(text: bytes, content: bytes) -> None:
    """The user's own store, with its table or, if there is a text, its stages.json changed by another user."""
    made = _ledger()
    own = store.Store(DIRECTORY)
    own.save(STAGE, {TABLE: made}, {"files": [1]})
    if text:
        entry = json.dumps(own.entry(STAGE))[1:-1].encode()
        (DIRECTORY / "stages.json").write_bytes(text.replace(ENTRY, entry))
        _check_entries(store.Store(DIRECTORY), own.entry(STAGE))
    else:
        (DIRECTORY / f"{TABLE}.parquet").write_bytes(content)
        with _unread():
            assert store.Store(DIRECTORY).load(TABLE, "losses") is None, "what was changed is believed"


def _check_entries(found: store.Store, own: dict[str, Any]) -> None:
    """Only the user's entry is trusted, and only for its stage."""
    for name in BY_NAME:
        assert found.entry(name) in ({}, own if name == STAGE else {}), "what was changed is believed"
    loaded = found.load(TABLE, "losses")
    assert loaded is None or (found.entry(STAGE) and loaded.to_pylist() == _ledger().to_pylist())


def _ledger() -> Any:
    ledger = losses.Ledger(STAGE)
    ledger.add("keep_alive_probes", 1)
    return ledger.table()


@contextmanager
def _unread() -> Iterator[None]:
    """Nothing calls the Parquet reader."""

    def reached(*_arguments: object) -> None:
        raise AssertionError("a stranger's bytes reach the Parquet reader")

    real, files.parquet = files.parquet, reached  # type: ignore[assignment]
    try:
        yield
    finally:
        files.parquet = real


seal._key()
guard.fuzz(one)
