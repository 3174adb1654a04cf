# SPDX-License-Identifier: GPL-2.0-only
"""The queues on a message's path, and the functions that can represent them (``queues.csv``)."""

from __future__ import annotations

import csv
import fnmatch
from dataclasses import dataclass
from pathlib import Path

from ..attribution.symbols import is_kernel, plain_name
from ..errors import BadInput

BUILT_IN = Path(__file__).with_name("queues.csv")

#: What is counted if there is no function.
MESSAGES = "messages"


@dataclass(frozen=True)
class Queue:
    """One queue: a message is in it from ``enter`` to ``leave`` (columns of messages), and ``where`` serves the others.

    ``served``: from when to when the message itself is served, which identifies the serving function; '' in the
    second place: until the thread continues with the next message. ``in_service``: what is being served when the message
    comes is ahead of it too (except the message itself). ``own``: packets of the message itself are served
    there one by one.
    """

    name: str
    side: str
    direction: str
    where: str
    enter: str
    leave: str
    served: tuple[str, str]
    served_where: str
    in_service: bool = True
    own: bool = False


QUEUES = (
    Queue("Driver", "R", "rx", "recv_cpu", "first_ns", "arrival_ns", ("arrival_ns", "arrival_ns"), "recv_cpu"),
    Queue(
        "Protocol", "R", "rx", "handoff_cpu", "arrival_last_ns", "handoff_ns",
        ("handoff_ns", "handoff_ns"), "handoff_cpu",
    ),
    Queue(
        "Kernel", "A", "rx", "app_cpu", "handoff_ns", "app_ns",
        ("arrival_ns", "arrival_ns"), "recv_cpu", in_service=False,
    ),
    Queue("App receive", "A", "rx", "tid", "handoff_ns", "call_ns", ("call_ns", "app_ns"), "tid"),
    Queue("App request", "A", "rx", "tid", "handoff_ns", "call_ns", ("app_ns", ""), "tid"),
    Queue("App send", "A", "rx", "tid", "handoff_ns", "call_ns", ("call_ns", "app_ns"), "tid"),
    Queue(
        "Transmit", "A", "tx", "recv_cpu", "call_ns", "driver_ns", ("driver_ns", "driver_ns"), "recv_cpu", own=True
    ),
)  # fmt: skip

#: Queues whose server is found from sent messages, not from waiting ones.
SERVED_BY_SENDING = ("App send",)
#: Queues that are counted by messages: (name, side). The first two only if functions are not recorded.
DRIVER, PROTOCOL, SOCKET, THREAD = ("Driver", "R"), ("Protocol", "R"), ("Socket", "A"), ("Thread", "A")
#: Every queue, in the order of a message's path.
ORDER = (
    "Driver",
    "Protocol",
    "Socket",
    "Thread",
    "App receive",
    "App request",
    "App send",
    "Kernel",
    "Transmit",
)


@dataclass(frozen=True)
class Candidate:
    """One line of queues.csv."""

    queue: str
    pattern: str
    dso: str

    @property
    def any_name(self) -> bool:
        """Whether it is found from its calls alone."""
        return self.pattern == "*"

    def regex(self) -> str:
        """The pattern as a regular expression for a whole name."""
        return fnmatch.translate(self.pattern).removesuffix(r"\Z")

    def fits(self, kind: str, symbol: str, dso: str) -> bool:
        """Whether a call of this kind, name and object matches.

        >>> Candidate("App receive", "read", "syscall").fits("syscall", "read", "")
        True
        >>> Candidate("Driver", "ip_rcv*", "kernel").fits("function", "ip_rcv_core.constprop.0", "[kernel.kallsyms]")
        True
        """
        if (kind == "syscall") != (self.dso == "syscall") or kind not in ("syscall", "function"):
            return False
        kernel = kind == "function" and is_kernel(dso)
        if self.dso == "kernel":
            of_object = kernel
        elif self.dso == "user":
            of_object = not kernel
        else:
            last = dso.rpartition("/")[2]
            of_object = self.dso == "syscall" or any(fnmatch.fnmatchcase(d, self.dso) for d in (dso, last))
        return of_object and fnmatch.fnmatchcase(plain_name(symbol, kernel), self.pattern)


def read(path: Path = BUILT_IN) -> list[Candidate]:
    """The lines of a queues file, in order. Raises BadInput, which names the wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: queues cannot be read: {error}", "reinstall nsight-report") from error
    known = {q.name for q in QUEUES}
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = next(csv.reader([line]))
        if len(fields) != 3 or not all(fields) or fields[0] not in known:
            raise BadInput(
                f"{path}:{number}: expected queue,function,dso", f"queues are: {', '.join(sorted(known))}"
            )
        rows.append(Candidate(*fields))
    return rows


def shown_by_calls(has_functions: bool) -> list[Queue]:
    """The queues that calls can represent: without recorded functions, those of a system call.

    >>> [queue.name for queue in shown_by_calls(False)]
    ['App receive']
    """
    of_syscalls = {line.queue for line in read() if line.dso == "syscall"}
    return [queue for queue in QUEUES if has_functions or queue.name in of_syscalls]
