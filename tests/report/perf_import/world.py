# SPDX-License-Identifier: GPL-2.0-only
"""A machine whose clocks are easy to calculate with, and a server on it.

The TSC runs at 2 GHz, perf's clock at half of it: perf = tsc / 2. CLOCK_MONOTONIC = perf + MONO and CLOCK_REALTIME =
CLOCK_MONOTONIC + REAL, from the first update of the clocks on.
"""

from __future__ import annotations

from recording import NS, Recording, time_conv

MS, US = 1_000_000, 1_000
MONO, REAL, TAI = 5_000 * NS, 1_790_000_000 * NS, 37
CONV = (1 << 30, 31, 0)  # perf = (tsc << 30) >> 31
MULT, SHIFT = 1 << 22, 23  # half a ns a cycle
BEGIN = 10 * MS  # perf's time of the first update
SERVER, CLIENT = ("10.0.0.1", 11211), ("10.0.0.2", 40000)
WORKER, HOG = 1001, 2002


def machine(clockid: int | None = None, **choices: object) -> Recording:
    """A recording with the first update of the clocks."""
    made = Recording(clockid, **choices)  # type: ignore[arg-type]
    if clockid is None:
        made.records.append(time_conv(*CONV))
    if "timekeeping:timekeeping_update" in made.names:
        update(made, BEGIN)
    return made


def update(
    made: Recording, at: int, *, late: int = 500, ahead: int = 0, mult: int = MULT, **values: int
) -> None:
    """The kernel's clocks from perf time ``at`` on; the kernel read the counter ``late`` ns earlier.

    ``ahead``: how far the clocks are ahead of the rule above at that reading.
    """
    then = at - late
    ts = at + MONO if made.clockid == 1 else at
    fields = {
        "cycle_last": 2 * then, "base_mono": then + MONO + ahead - 3, "base_real": then + MONO + REAL + ahead - 3,
        "xtime_nsec": 3 << SHIFT, "mult": mult, "shift": SHIFT, "tai_offset": TAI, "cs_id": 4,
    }  # fmt: skip
    made.sample("timekeeping:timekeeping_update", ts, **{**fields, **values})


def stamp(made: Recording, at: int) -> int:
    """Perf time ``at`` in the clock of the file."""
    return at + MONO if made.clockid == 1 else at


def socket(
    made: Recording, event: str, at: int, *, pos: int, length: int, cookie: int = 0x51, skb: int = 0xFF00,
    cpu: int = 0, tid: int = 0, **values: int,
) -> None:  # fmt: skip
    """sock_data_queued or sock_data_read of the server's connection."""
    fields = {
        "sock_cookie": cookie, "skbaddr": skb, "pos": pos, "len": length, "sport": SERVER[1],
        "dport": CLIENT[1], "family": 2, "protocol": 6,
    }  # fmt: skip
    made.sample(f"sock:{event}", stamp(made, at), cpu=cpu, tid=tid, **{**fields, **values})


def switch(
    made: Recording, at: int, cpu: int, before: tuple[int, bytes], after: tuple[int, bytes], state: int = 0
) -> None:
    """A context switch."""
    made.sample(
        "sched:sched_switch", stamp(made, at), cpu=cpu, tid=before[0], prev_pid=before[0], prev_comm=before[1],
        prev_state=state, next_pid=after[0], next_comm=after[1],
    )  # fmt: skip


def request(
    made: Recording, at: int, *, pos: int, length: int, read_at: int, cookie: int = 0x51, skb: int = 0xFF00
) -> None:
    """Arrives 5 us after ``at`` on core 0, is handed off 3 us later, and is read by the worker on core 1 at ``read_at``."""
    made.sample("net:netif_receive_skb", stamp(made, at + 5 * US), cpu=0, skbaddr=skb, len=length + 40)
    socket(made, "sock_data_queued", at + 8 * US, pos=pos, length=length, cookie=cookie, skb=skb)
    made.sample(
        "raw_syscalls:sys_enter",
        stamp(made, read_at - 2 * US),
        cpu=1,
        tid=WORKER,
        id=0,
        args=(7).to_bytes(48, "little"),
    )
    socket(made, "sock_data_read", read_at, pos=pos, length=length, cookie=cookie, skb=skb, cpu=1, tid=WORKER)
    made.sample("raw_syscalls:sys_exit", stamp(made, read_at + US), cpu=1, tid=WORKER, id=0, ret=length)


def busy_server(made: Recording, n: int = 1000) -> None:
    """A request every 100 us, read 20 us after it came; but every 100th waits 2 ms, while the hog has core 1."""
    worker, hog, idle = (WORKER, b"mc-worker"), (HOG, b"hog"), (0, b"swapper/1")
    switch(made, BEGIN + 10 * US, 1, idle, worker)
    at = BEGIN + 100 * US
    for number in range(n):
        slow = number % 100 == 99
        if slow:
            switch(made, at + US, 1, worker, hog)
            switch(made, at + 2 * MS, 1, hog, worker)
        wait = 2 * MS + 15 * US if slow else 20 * US
        request(made, at, pos=number * 30, length=30, read_at=at + wait, skb=0xFF00 + number % 7)
        at += wait + 80 * US
        if number % 50 == 0:
            update(made, at - 10 * US)
    switch(made, at, 1, worker, idle, 1)
