# SPDX-License-Identifier: GPL-2.0-only
"""Lines ``# ...`` before the intervals of a file: values that apply to every line, and foreign clocks.

::

    # clock realtime                              for lines that name no clock (default: monotonic)
    # thread 4711                                 for lines that name no thread
    # core 3                                      for lines that name no core
    # offset dsp 120000 monotonic 88000120000     clock dsp showed 120000 when monotonic showed 88000120000
    # pair order probe_x:submit probe_x:done      for perf script: these two events begin and end an order

Any other comment is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..errors import BadInput

#: The largest time that a column holds, with room for an offset on top.
MOST_NS = 1 << 61
MOST_TID = (1 << 22) - 1  # PID_MAX_LIMIT of 64-bit kernels
MOST_CORE = (1 << 16) - 1
_MOST_CLOCKS = 64

_FORMS = "write '# clock NAME', '# thread TID', '# core N', '# offset CLOCK NS KNOWN_CLOCK NS' or '# pair NAME BEGIN END'"


@dataclass(frozen=True)
class Offset:
    """When a foreign clock showed ``foreign_ns``, ``domain`` showed ``known_ns``; both run equally fast."""

    foreign_ns: int
    domain: str
    known_ns: int


@dataclass(frozen=True)
class Declarations:
    """The declarations in the comments of a file; -1: not given."""

    clock: str | None = None
    thread: int = -1
    core: int = -1
    offsets: dict[str, Offset] = field(default_factory=dict)
    pairs: dict[str, tuple[str, str]] = field(default_factory=dict)

    def with_line(self, words: list[str], where: str) -> Declarations:
        """The same with one more comment, given as words. Raises BadInput naming ``where`` for an incomplete declaration."""
        match words:
            case ["clock", name]:
                return replace(self, clock=name)
            case ["thread", text]:
                return replace(self, thread=_number(text, MOST_TID, where, 1))
            case ["core", text]:
                return replace(self, core=_number(text, MOST_CORE, where))
            case ["offset", name, foreign, domain, known]:
                if len(self.offsets) == _MOST_CLOCKS or name == domain:
                    raise BadInput(f"{where}: clock {name!r} cannot be declared", _FORMS)
                pair = Offset(_number(foreign, MOST_NS, where), domain, _number(known, MOST_NS, where))
                return replace(self, offsets={**self.offsets, name: pair})
            case ["pair", name, begin, end] if len(self.pairs) < _MOST_CLOCKS and begin != end:
                return replace(self, pairs={**self.pairs, name: (begin, end)})
            case ["pair", *_]:
                raise BadInput(f"{where}: a pair is a name and two different events", _FORMS)
            case ["offset", *_]:
                raise BadInput(f"{where}: an offset is a pair of times of two clocks", _FORMS)
        return self


def _number(text: str, most: int, where: str, least: int = 0) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not least <= value <= most:
        raise BadInput(f"{where}: {text!r} is not a number from {least} to {most}", _FORMS)
    return value
