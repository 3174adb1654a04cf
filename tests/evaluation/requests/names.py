# SPDX-License-Identifier: GPL-2.0-only
"""Name servers (unbound, dnsmasq) with a slow upstream server: is each query of the client joined, and the upstream named?

    names.py [--seconds S] [--keep DIR] [SERVER-udp|SERVER-tcp ...]

Four clients ask for names that nobody has cached, each its next one after a reply and 1 ms. The upstream server sleeps 10 ms in every
fortieth query. Clients log when they sent each query and had its reply; the upstream logs its sleeps. ``joined``: share of the clients'
queries for which the report has exactly one request; ``top-1`` and coverage are those of requests that a sleep delayed (causes.py). Over UDP a
sleep delays all queries that come meanwhile, over TCP its own, since each connection has a thread. ``any``: top-1 if each sleep counts for all
requests meanwhile. Cases run as root, in a separate network namespace.
"""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

if __name__ == "__main__":
    _ROOT = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(_ROOT / part) for part in ("tools/nsight-report", "tools/nsight-demo", "tests")]

HOST, PORT, UPSTREAM = "127.0.0.1", 5301, 5302
CLIENTS, HELD_S, EVERY = 4, 0.010, 40
UNBOUND = f"""
server:
  interface: {HOST}@{PORT}
  port: {PORT}
  do-daemonize: no
  chroot: ""
  username: ""
  pidfile: ""
  use-syslog: no
  do-not-query-localhost: no
  module-config: "iterator"
  num-threads: 1
  tcp-idle-timeout: 60000
forward-zone:
  name: "."
  forward-addr: {HOST}@{UPSTREAM}
remote-control:
  control-enable: no
"""
SERVERS = {
    "unbound": ["unbound", "-c", "{directory}/unbound.conf"],
    "dnsmasq": [
        "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--no-resolv", "--no-hosts", "--cache-size=0", "--pid-file=",
        f"--port={PORT}", f"--listen-address={HOST}", "--bind-interfaces", f"--server={HOST}#{UPSTREAM}",
    ],
}  # fmt: skip
CASES = [f"{server}-{proto}" for server in SERVERS for proto in ("udp", "tcp")]
#: A query's reply can be lost with UDP.
TIMEOUT_S = 5.0


def query(name: str, number: int) -> bytes:
    """For the address of a name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def upstream(log: str) -> None:
    """Answers every query with the address 10.0.0.1, and logs sleeps: "start end proto question", CLOCK_MONOTONIC ns, in hex."""
    lines, turn = Path(log).open("a", buffering=1), itertools.count(1)  # noqa: SIM115

    def reply(asked: bytes, proto: str) -> bytes:
        end = asked.index(b"\0", 12) + 5
        if next(turn) % EVERY == 0:
            start = time.monotonic_ns()
            time.sleep(HELD_S)
            until = min(time.monotonic_ns(), start + int(HELD_S * 1e9))
            lines.write(f"{start} {until} {proto} {asked[12:end].hex()}\n")
        answer = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 0, 4) + bytes([10, 0, 0, 1])
        return asked[:2] + struct.pack("!5H", 0x8180, 1, 1, 0, 0) + asked[12:end] + answer

    def attend(connection: socket.socket) -> None:
        # A query is one segment here.
        while asked := connection.recv(4096):
            made = reply(asked[2:], "tcp")
            connection.sendall(struct.pack("!H", len(made)) + made)

    def accept(listener: socket.socket) -> None:
        while True:
            threading.Thread(target=attend, args=listener.accept()[:1], daemon=True).start()

    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((HOST, UPSTREAM))
    listener = socket.create_server((HOST, UPSTREAM))
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    print("ready", flush=True)
    while True:
        asked, peer = server.recvfrom(4096)
        server.sendto(reply(asked, "udp"), peer)


def load(proto: str, seconds: float, log: str) -> None:
    """Clients; the log has a line "port sent received question" for each query."""
    end, lines, lock = time.monotonic() + seconds, [], threading.Lock()

    def ask(client: int) -> None:
        kind = socket.SOCK_DGRAM if proto == "udp" else socket.SOCK_STREAM
        size, number = 0 if proto == "udp" else 2, 0
        while time.monotonic() < end:
            with socket.socket(socket.AF_INET, kind) as s:
                s.settimeout(TIMEOUT_S)
                s.connect((HOST, PORT))
                port = s.getsockname()[1]
                while time.monotonic() < end:
                    number += 1
                    asked = query(f"n{number}.c{client}.x{time.monotonic_ns()}.example.com", number & 0xFFFF)
                    sent = time.monotonic_ns()
                    s.sendall(struct.pack("!H", len(asked))[:size] + asked)
                    reply = s.recv(4096)
                    received = time.monotonic_ns()
                    if not reply:  # dnsmasq closes a connection after 100 queries
                        break
                    assert struct.unpack("!H", reply[size : size + 2])[0] == number & 0xFFFF
                    with lock:
                        lines.append(f"{port} {sent} {received} {asked[12:].hex()}\n")
                    time.sleep(0.001)

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Path(log).write_text("".join(lines))


def record(case: str, directory: Path, seconds: float) -> Path:
    """Returns the capture. The clients' log is the file ``clients`` beside it; the upstream server's log is ``truth``."""
    from evaluation.requests.causes import END_S, RECORD

    server, _, proto = case.partition("-")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "unbound.conf").write_text(UNBOUND)
    with ExitStack() as stack:
        own = [sys.executable, __file__]
        above = subprocess.Popen(
            [*own, "upstream", str(directory / "truth")], stdout=subprocess.PIPE, text=True
        )
        stack.callback(above.wait)
        stack.callback(above.kill)
        assert above.stdout is not None and above.stdout.readline() == "ready\n"
        argv = [word.format(directory=directory) for word in SERVERS[server]]
        names = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        stack.callback(names.wait)
        stack.callback(names.terminate)
        until = time.monotonic() + END_S
        while True:
            assert names.poll() is None and time.monotonic() < until, f"{server} does not listen"
            try:
                socket.create_connection((HOST, PORT)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        argv = [*own, "load", proto, f"{seconds:g}", str(directory / "clients")]
        done = subprocess.run(
            [RECORD, "-q", "-f", "-o", directory / "run.nsight", "--", *argv],
            capture_output=True, text=True, timeout=END_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return directory / "run.nsight"


def joined(capture: Path) -> tuple[int, int]:
    """Number of the clients' queries for which the report has exactly one request, and number of all their queries."""
    import nsight_report
    import numpy as np

    asked = np.loadtxt(capture.with_name("clients"), np.int64, ndmin=2, usecols=(0, 1, 2))
    made = nsight_report.open(capture, port=PORT).requests
    made = made[(made["role"] == "server") & (made["lport"] == PORT)]
    port, first, last = (made[name].to_numpy(np.int64) for name in ("rport", "first_ns", "last_ns"))
    asked = asked[np.lexsort((asked[:, 1], asked[:, 0]))]
    span = np.int64(asked[:, 2].max() + 1)
    place = np.searchsorted(asked[:, 0] * span + asked[:, 1], port * span + first, "right") - 1
    inside = (place >= 0) & (port == asked[place, 0]) & (last <= asked[place, 2])
    return int((np.bincount(place[inside], minlength=len(asked)) == 1).sum()), len(asked)


def sleeps(capture: Path) -> list[tuple[int, int, int]]:
    """Client's port (0: any), start and end of each sleep of the upstream server."""
    clients = (line.split() for line in capture.with_name("clients").read_text().splitlines())
    # A server may write a name in other cases (RFC draft "0x20").
    ports = {bytes.fromhex(question).lower(): int(port) for port, _, _, question in clients}
    logged = (line.split() for line in capture.with_name("truth").read_text().splitlines())
    # -1: a query without a reply
    return [
        (0 if proto == "udp" else ports.get(bytes.fromhex(question).lower(), -1), int(start), int(end))
        for start, end, proto, question in logged
    ]


def main() -> int:
    """Print a line for each case; fail if a goal is missed."""
    from evaluation.requests.causes import CASES as CAUSES
    from evaluation.requests.causes import command_line, score

    args = command_line(__doc__, CASES)
    bad = False
    print(
        f"{'case':12} {'queries':>8} {'joined':>7} {'any':>6} {'slow':>5} {'top-1':>6} {'median':>7} {'least':>6}  largest, as told"
    )
    for case in args.cases or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            capture = record(case, (args.keep or Path(scratch)) / case, args.seconds)
            n, of = joined(capture)
            truth = sleeps(capture)
            s = score("DNS", capture, truth, PORT)
            everyone = score("DNS", capture, [(0, start, end) for _, start, end in truth], PORT)
        print(
            f"{case:12} {of:8} {n / of:7.2%} {everyone.top:6.1%} {s.n:5} {s.top:6.1%} {s.median:7.1%} {s.least:6.1%}  {s.told[:120]}",
            flush=True,
        )
        bad |= n < 0.999 * of or s.top < 0.95 or CAUSES["DNS"].said not in s.told
    return int(bad)


if __name__ == "__main__":
    if sys.argv[1:2] == ["upstream"]:
        upstream(sys.argv[2])
    elif sys.argv[1:2] == ["load"]:
        load(sys.argv[2], float(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
