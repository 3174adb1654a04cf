# SPDX-License-Identifier: GPL-2.0-only
"""Starts and ends nsight-histograms, which contains the BPF programs."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from nsight_record import cgroups, netns, programs
from nsight_record.errors import EXIT_MISSING, EXIT_USAGE, Missing, RecordError, ToolDied, Usage

from .flight import DEFAULT_TRIGGERS, trigger
from .followed import Followed
from .snapshots import BadLine

PROGRAM = "nsight-histograms"
_BIN = Path(__file__).parent / "bin"


def find() -> str:
    """The program. Raises Missing."""
    own = _BIN / PROGRAM
    found = (
        str(own)
        if own.is_file() and os.access(own, os.X_OK)
        else shutil.which(PROGRAM, path=programs.search_path())
    )
    if not found:
        raise Missing(f"{PROGRAM} is not built", "make build, with clang, bpftool and libbpf-dev")
    return found


def has_nic() -> bool:
    """Whether an interface belongs to a physical device; only the kernel can timestamp its packets."""
    return any(Path("/sys/class/net").glob("*/device"))


def netns_cookie(space: netns.Netns) -> int:
    """The namespace's cookie; 0: not known."""
    try:
        return int(netns.call_in(space, netns.cookie))
    except (OSError, RecordError):
        return 0


def followed_of(args: argparse.Namespace) -> Followed:
    """The filters whose names are looked up while the program runs. Raises Usage."""
    space = netns.find(args.netns) if args.netns else netns.current()
    return Followed(args, space, netns_cookie(space) if args.netns or args.iface else 0)


def argv(args: argparse.Namespace, program: str) -> list[str]:
    """The command. Raises Usage for names that do not exist."""
    space = netns.find(args.netns) if args.netns else netns.current()
    ifindex = 0
    if args.iface:
        try:
            ifindex = netns.call_in(space, socket.if_nametoindex, args.iface)
        except (OSError, RecordError):
            raise Usage(
                f"--iface {args.iface}: no such interface", "ip link lists them; another namespace: --netns"
            ) from None
    if args.pid and not Path(f"/proc/{args.pid}").exists():
        raise Usage(f"--pid {args.pid}: no such process")
    duration = args.interval if args.once else args.duration
    options = {
        "--interval-ms": round(args.interval * 1000),
        "--duration-ms": round(duration * 1000) if duration else 0,
        "--port": args.port,
        "--peer": args.peer,
        "--pid": args.pid,
        "--comm": args.comm,
        "--cgroup": cgroups.directory(args.cgroup).stat().st_ino if args.cgroup else 0,
        "--ifindex": ifindex,
        "--netns": space.inum if args.netns or args.iface else 0,
        "--netns-cookie": netns_cookie(space) if args.netns or args.iface else 0,
        "--group-by": args.group_by,
        "--groups": args.groups,
        "--group-idle-ms": args.group_idle * 1000,
        "--stages": args.stages,
        "--queue": args.min_queue,
    }
    command = [program]
    for option, value in options.items():
        command += [option, str(value)] if value else []
    triggers = args.trigger or (DEFAULT_TRIGGERS if args.flight else ())
    for stage, ns in map(trigger, triggers):
        command += ["--trigger", f"{stage}={ns}"]
    if args.receive_stamps == "on" or (args.receive_stamps == "auto" and has_nic()):
        command.append("--receive-stamps")
    if args.cost:
        command.append("--cost")
    return command


def stages(program: str) -> str:
    """Its first line: which stages this kernel has. Raises ToolDied."""
    done = subprocess.run([program, "--list-stages"], capture_output=True, text=True)
    if done.returncode:
        raise _died(done.returncode, done.stderr)
    return done.stdout


def _died(code: int, stderr: str) -> RecordError:
    if code < 0:
        return ToolDied(f"{PROGRAM} was killed (signal {-code})", "start it again: every count begins at 0")
    what, _, hint = stderr.strip().rpartition("\nhint: ")
    line = (what or stderr.strip()).rpartition("error: ")[2]
    kind = {EXIT_USAGE: Usage, EXIT_MISSING: Missing}.get(code, ToolDied)
    return kind(f"{PROGRAM}: {line or 'it ended'}", hint)


def _tell(process: subprocess.Popen[str], line: str) -> None:
    """Raises OSError if it has ended."""
    assert process.stdin
    process.stdin.write(line)
    process.stdin.flush()


@contextmanager
def running(command: list[str], followed: Followed | None = None) -> Iterator[subprocess.Popen[str]]:
    """The running program; it ends with the block. Names that its filters have are ``followed``. Raises ToolDied or Usage if it failed by itself, since
    that explains more than an error in its lines."""
    if os.geteuid() != 0:
        raise Missing("not root: the kernel loads BPF programs for root only", "run it with sudo")
    process = subprocess.Popen(
        [*command, "--follow"] if followed else command,
        stdin=subprocess.PIPE if followed else None, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        # Ctrl-C is for the monitor, which then requests the last line.
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout and process.stderr
    said: list[str] = []
    # The verifier's log may be larger than a pipe.
    drain = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
    drain.start()
    bad: BadLine | None = None
    try:
        with followed.watched(partial(_tell, process)) if followed else nullcontext():
            yield process
    except BadLine as e:
        bad = e
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.stdout.close()
        process.wait()
        drain.join()
    if process.returncode not in (0, 5, -signal.SIGTERM):  # 5: the block stopped reading before the end
        raise _died(process.returncode, "".join(said))
    if bad:
        raise bad
