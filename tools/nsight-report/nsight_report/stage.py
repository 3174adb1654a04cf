# SPDX-License-Identifier: GPL-2.0-only
"""Stages of the pipeline: what each reads, what it makes, and the call that makes it.

A stage imports what it needs when it runs, so that a report from stored tables starts fast.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from . import code, files
from .errors import BadInput
from .manifest import Manifest
from .tables.store import Written

if TYPE_CHECKING:
    from .tables.intervals import IntervalTable
    from .tables.messages import Messages

#: Directory of the files that the BPF recorder writes: a capture with it needs no events.tsv and no perf.data.
RECORDS = "records"

#: A file of intervals that a capture may contain.
INTERVALS = "intervals.csv"

#: Value of ``decode``: decode Intel PT only around slow and baseline messages.
CHOSEN = "chosen"

#: Value of ``direction``: whole requests, from arrival to reply, instead of messages.
REQUEST = "request"


def thing(direction: str) -> str:
    """What is diagnosed, in one word.

    >>> [thing(direction) for direction in ("rx", "tx", REQUEST, "interval")]
    ['message', 'message', 'request', 'interval']
    """
    return direction if direction in (REQUEST, "interval") else "message"


#: Options that select the messages that are compared.
SLICES = ("slow", "baseline", "app", "port", "direction", "role", "decode")
#: The same, and options for how they are compared.
ANALYSIS = (*SLICES, "against", "nested")


@dataclass(frozen=True)
class Options:
    """What a user may choose. Each stage names the options that change its result."""

    slow: str = "p99-100"
    baseline: str = "p25-75"
    app: str | None = None
    port: int | None = None
    direction: str = "rx"
    framing: str = "none"
    categories: str | None = None
    symfs: str | None = None
    decode: str = "all"
    against: str | None = None
    nested: int = 80
    role: str = "server"
    intervals: str | None = None


@dataclass(frozen=True)
class Context:
    """What a running stage has access to: the raw files, the manifest, the options, stored tables.

    ``table``: a whole table by name; ``stored``, ``messages`` and ``requests``: the same, but only the parts in use are read;
    ``compared``: what is diagnosed, messages or requests in the same form.
    ``scratch``: an empty directory for the running stage, on the disk of the tables;
    ``other``: the context of the capture that supplies the baseline messages.
    """

    capture: Path
    manifest: Manifest
    options: Options
    table: Callable[[str], pa.Table]
    stored: Callable[[str], IntervalTable]
    messages: Callable[[], Messages]
    requests: Callable[[], Messages]
    compared: Callable[[], Messages]
    scratch: Path | None = None
    other: Context | None = None

    def raw(self, name: str) -> Path:
        """The path of a raw file. Raises BadInput when it is absent, empty or not readable."""
        path = self.capture / name
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                return path  # perf.data is a directory when recorded with --kcore
            with files.opened(path) as file:
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            raise BadInput(
                f"{path}: missing from the capture", "copy the whole capture directory, or record again"
            ) from None
        except PermissionError:
            raise BadInput(
                f"{path}: not readable by this user", f"it is private: sudo chown -R $USER {self.capture}"
            ) from None
        except OSError as error:
            raise BadInput(
                f"{path}: {error.strerror}", "copy the whole capture directory, or record again"
            ) from None
        if not size:
            raise BadInput(
                f"{path}: empty", "see the .log file of the same name in the capture; record again"
            )
        return path

    @property
    def has_records(self) -> bool:
        """Whether the BPF recorder made the capture."""
        return (self.capture / RECORDS).is_dir()

    @property
    def activity_of_records(self) -> bool:
        """Whether the records contain the activity of cores. Beside Intel PT they contain messages only."""
        return self.has_records and self.manifest.mode != "intel-pt"


Result = tuple[dict[str, pa.Table | Written], pa.Table]


@dataclass(frozen=True)
class Stage:
    """One stage: ``run`` turns the tables of ``needs`` and the files ``raw`` into ``tables``.

    ``options``: names of the options that change its result. ``programs``: native programs that it runs. ``by_message``: with
    ``decode`` chosen, its result also depends on which messages are chosen. ``of_threads``: with ``intervals`` it needs to know
    threads, unless only what is chosen is decoded. ``diagnosis``: its tables depend on which messages
    are slow, not only on the recording. ``schemas``: schema of each table that is not named like its schema.
    """

    name: str
    run: Callable[[Context], Result]
    needs: tuple[str, ...] = ()
    raw: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    by_message: bool = False
    of_threads: bool = False
    diagnosis: bool = False
    schemas: tuple[tuple[str, str], ...] = ()

    def inputs(self, options: Options) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Stages whose tables it reads with these options, and names of the options that it uses."""
        if self.by_message and options.decode == CHOSEN:
            return (*self.needs, "messages", "requests"), (*self.options, *SLICES)
        if self.of_threads and options.intervals and options.decode != CHOSEN:
            return (*self.needs, "contexts"), self.options
        return self.needs, self.options

    @cached_property
    def identity(self) -> str:
        """Identity of the code that it runs."""
        module = sys.modules[self.run.__module__].__file__
        assert module is not None
        return code.identity(Path(module), self.programs)
