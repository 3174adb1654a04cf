#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs inside a guest: makes recordings with the BPF recorder and leaves them in the given directory.

The recordings are made in the guest's memory and moved to the directory at the end. A read() of a host file never returns if
a longer file replaces it while it is open (9p of 6.12 keeps reading beyond the end), and the manifest is replaced in this way.

in_guest.py DIR records      plain.nsight, 50 requests; offline.nsight, 40 requests while core 1 is off for the second
                             half and on again at the end; flight, a directory with one window; kernel-text.json: sizes of
                             the kernel's text and symbols as a window of Intel PT has them, and perf record --kcore
                             memory.nsight and memory.calls: memory_work.py, if there are two memory nodes
in_guest.py DIR nbd          nbd.nsight: threads of the kernel read the blocks of a network block device from a socket
in_guest.py DIR stops        stops.nsight and stops.csv: steps of busy_steps.py while the file DIR/stops exists
in_guest.py DIR preflight    preflight.json: exit code and output of --preflight, by --recorder
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (0, 1, 2)]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools/nsight-record"))

from nsight_record.snapshots import copy_kernel_text  # noqa: E402
from recorder_run import RECORDER, EchoServer, Running, manifest  # noqa: E402

HANGS_S = 300

# include/uapi/linux/nbd.h
NBD_SET_SOCK, NBD_SET_SIZE, NBD_DO_IT, NBD_DISCONNECT = 0xAB00, 0xAB02, 0xAB03, 0xAB08
NBD_REPLY, NBD_READS, NBD_DISCONNECTS = 0x67446698, 0, 2


def at(where: str) -> None:
    """Report the progress, in case the host waits in vain."""
    print(f"{time.monotonic():7.1f} s: {where}", file=sys.stderr, flush=True)


def stops(directory: Path) -> None:
    """stops.nsight, stops.csv: a program that computes, while the guest is stopped from outside."""
    wanted = Path(sys.argv[1]) / "stops"
    program = [sys.executable, Path(__file__).with_name("busy_steps.py"), directory / "stops.csv", wanted]
    subprocess.run([RECORDER, "-q", "-o", directory / "stops.nsight", "--", *program], check=True)
    at("stops: ended")


def offline(cpu: int, off: bool) -> None:
    Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text("0" if off else "1")


def recorded(directory: Path, name: str) -> tuple[EchoServer, Running]:
    """A server and a recorder that records it."""
    server = EchoServer()
    running = Running(directory / name, "--port", str(server.port), "--clients", "--syscalls", "messages")
    running.wait_recording()
    return server, running


def end(running: Running) -> None:
    running.process.send_signal(signal.SIGINT)
    _, said = running.end()
    assert running.process.returncode == 130, said


def memory(directory: Path) -> None:
    """memory.nsight, memory.calls: what memory_work.py did."""
    group = Path("/sys/fs/cgroup/memory-work")
    (group.parent / "cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    program = [sys.executable, Path(__file__).with_name("memory_work.py"), directory / "memory.calls", group]
    subprocess.run(
        [RECORDER, "-q", "--syscalls", "messages", "-o", directory / "memory.nsight", "--", *program],
        check=True,
    )
    at("memory: ended")


def records(directory: Path) -> None:
    """The captures."""
    server, running = recorded(directory, "plain.nsight")
    at("plain: recording")
    server.requests(50)
    end(running)
    at("plain: ended")
    server, running = recorded(directory, "offline.nsight")
    at("offline: recording")
    server.requests(20)
    offline(1, True)
    at("offline: core 1 is off")
    server.requests(20)
    offline(1, False)
    at("offline: core 1 is on")
    end(running)
    at("offline: ended")
    flight(directory / "flight", server)
    memory(directory)
    if os.uname().release.startswith(
        "6.12."
    ):  # perf does the same on the other kernels, and an emulated processor takes a minute
        kernel_text(directory)


def serve_blocks(listener: socket.socket) -> None:
    """Zeros for every read, until the client disconnects."""
    connection, _ = listener.accept()
    while request := connection.recv(28, socket.MSG_WAITALL):
        kind, handle, length = struct.unpack(">6xH8s8xI", request)
        if kind == NBD_DISCONNECTS:
            break
        answer = struct.pack(">II8s", NBD_REPLY, 0, handle)
        connection.sendall(answer + bytes(length) if kind == NBD_READS else answer)


def nbd(directory: Path) -> None:
    """The capture."""
    subprocess.run(["modprobe", "nbd"], check=True)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve_blocks, args=(listener,), daemon=True).start()
    port = listener.getsockname()[1]
    running = Running(directory / "nbd.nsight", "--port", str(port), "--clients", "--syscalls", "messages")
    running.wait_recording()
    device = os.open("/dev/nbd0", os.O_RDWR)
    with socket.create_connection(("127.0.0.1", port)) as client:
        fcntl.ioctl(device, NBD_SET_SIZE, 1 << 20)
        fcntl.ioctl(device, NBD_SET_SOCK, client.fileno())
        works = threading.Thread(target=fcntl.ioctl, args=(device, NBD_DO_IT))
        works.start()
        blocks = Path("/sys/block/nbd0/size")
        while blocks.read_text() == "0\n":
            time.sleep(0.1)
        with open("/dev/nbd0", "rb", buffering=0) as file:
            assert len(file.read(1 << 20)) > 0
        fcntl.ioctl(device, NBD_DISCONNECT)
        works.join(HANGS_S)
    end(running)


def flight(directory: Path, server: EchoServer) -> None:
    """A window that the user requests."""
    argv = [str(RECORDER), "--flight", "-o", str(directory), "--port", str(server.port), "--before", "30"]
    process = subprocess.Popen([*argv, "--memory", "16M"], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    said = ""
    while "flight recorder:" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    at("flight: recording")
    server.requests(50)
    process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + HANGS_S
    while not any(manifest(p.parent)["state"] == "complete" for p in directory.glob("*/manifest.json")):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANGS_S)


def kernel_text(directory: Path) -> None:
    """Sizes of the files in kcore_dir, by the way in which they were made."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as own:
        copied = Path(own) / "copied"
        assert copy_kernel_text(copied, None), os.listdir(copied)
        argv = ["perf", "record", "--kcore", "-e", "dummy", "-o", f"{own}/perf.data", "--", "true"]
        subprocess.run(argv, check=True, capture_output=True, timeout=HANGS_S)
        by = {"copied": copied, "perf": Path(own) / "perf.data/kcore_dir"}
        sizes = {name: {p.name: len(p.read_bytes()) for p in path.iterdir()} for name, path in by.items()}
    (directory / "kernel-text.json").write_text(json.dumps(sizes))
    at("kernel's text: copied")


def preflight(directory: Path) -> None:
    """What the recorder reports about this kernel."""
    said = {}
    for recorder in ("bpf", "auto"):
        argv = [str(RECORDER), "--preflight", "--recorder", recorder, "-o", str(directory / "none.nsight")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S)
        said[recorder] = [done.returncode, done.stdout + done.stderr]
    (directory / "preflight.json").write_text(json.dumps(said))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(2 * HANGS_S)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as own:
        made = {"records": records, "nbd": nbd, "preflight": preflight, "stops": stops}[sys.argv[2]]
        made(Path(own))
        for old in Path(sys.argv[1]).iterdir():  # left by an earlier guest that failed
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(own, sys.argv[1], dirs_exist_ok=True)
