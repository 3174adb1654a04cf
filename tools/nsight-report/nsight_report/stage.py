# SPDX-License-Identifier: GPL-2.0-only
"""What a stage of the pipeline is: what it reads, what it makes, and the call that makes it.

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

#: Directory of the files that the BPF recorder writes: a capture that has it needs no events.tsv and no perf.data.
RECORDS = "records"

#: A file of intervals that a capture may bring.
INTERVALS = "intervals.csv"

#: Value of ``decode``: Intel PT around slow and baseline messages, and no other.
CHOSEN = "chosen"

#: Value of ``direction``: whole requests, from arrival to reply, in place of messages.
REQUEST = "request"

#: Options that say which messages are compared.
SLICES = ("slow", "baseline", "app", "port", "direction", "role", "decode")
#: And how.
ANALYSIS = (*SLICES, "against", "nested")


@dataclass(frozen=True)
class Options:
    """What a user may choose. Each stage names the ones that change its result."""

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
    """What a running stage sees: the raw files, the manifest, the options, stored tables.

    ``table``: a whole table by name; ``stored``, ``messages`` and ``requests``: the same, read only as far as somebody asks;
    ``compared``: what is diagnosed, messages or requests in their form.
    ``scratch``: an empty directory on the disk of the tables, for the running stage;
    ``other``: the same of the capture that is compared with.
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
                return path  # perf.data is one when recorded with --kcore
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
        """Was it recorded by the BPF recorder?"""
        return (self.capture / RECORDS).is_dir()

    @property
    def activity_of_records(self) -> bool:
        """Do records tell what cores did? Beside Intel PT they tell of messages only."""
        return self.has_records and self.manifest.mode != "intel-pt"


Result = tuple[dict[str, pa.Table | Written], pa.Table]


@dataclass(frozen=True)
class Stage:
    """One stage: ``run`` turns the tables of ``needs`` and the files ``raw`` into ``tables``.

    ``options``: names of the ones that change its result. ``programs``: native ones that it runs. ``by_message``: with
    ``decode`` chosen, which messages are chosen changes its result too. ``of_threads``: with ``intervals`` it needs to know
    threads, unless only what is chosen is decoded. ``diagnosis``: its tables depend on which messages
    are slow, and not on the recording alone. ``schemas``: of a table whose name is not that of its schema.
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
        """Stages whose tables it reads with these options, and names of the options it heeds."""
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
