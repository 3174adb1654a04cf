# SPDX-License-Identifier: GPL-2.0-only
"""All scenarios."""

from __future__ import annotations

from . import disturbances as d
from .base import Cause, Scenario

BOUND = ("-c", "8", "-r", "0", "-n", "64", "--bind-port", str(d.PORTS))
#: For disturbances that check for the client every 100 ms before they begin.
NOTICED = ("--start-delay", "150")
ECHO = ("-P", "echo", "-c", "2", "-r", "0", "-n", "60")
#: The user-space stack's address, on the link but not the kernel's.
USER_STACK4 = "198.18.77.3"
# Numbers of disturbances in marks; 1 to 5 belong to pt-app, 6 to pt-user-stack.
USER_STACK, HOG, NEIGHBOUR = 6, 10, 11
#: Closed loops would make every connection wait for those that pass the chain.
SPREAD = ("-c", "4", "-r", "500", "-n", "60", "--bind-port", str(d.PORTS))


def app(name: str, what: str, mark: int, names: tuple[str, ...], cause: str | None = None) -> Scenario:
    """A scenario whose cause lies in the application, and is marked there."""
    known = Cause(name, what, "A", "marks", mark=mark, names=names)
    return Scenario(name, what, known, server="app", app_cause=cause or name, load=ECHO)


SCENARIOS = {
    s.name: s
    for s in (
        Scenario("quiet", "control: memcached alone", expect="no cause"),
        Scenario("quiet-redis", "control: redis alone", server="redis", expect="no cause"),
        Scenario("quiet-nginx", "control: nginx alone", server="nginx", expect="no cause"),
        Scenario(
            "hog",
            "a real-time program takes turns on the application's core",
            Cause("hog", "the core was taken", "A", "marks", mark=HOG, names=("hog",)),
            disturb=d.hog(300, 1500),
        ),
        Scenario(
            "kworker",
            "a kernel worker cleans up network namespaces on the application's core",
            Cause(
                "kworker",
                "a kworker ran",
                "A",
                "functions",
                symbols=("cleanup_net",),
                names=("kworker",),
            ),
            load=("-c", "4", "-r", "500", "-n", "60", *NOTICED),
            disturb=d.kworker(40, 0.01),
        ),
        Scenario(
            "head-of-line",
            "10 requests at once on one connection",
            Cause("burst", "messages before it in the same socket", "A", "excess", names=("memcached",)),
            load=("-c", "2", "-r", "2000", "--fixed", "-n", "24", "--burst", "10", "--burst-every", "4"),
        ),
        app(
            "fault", "pages that the application reads were given back", 4, ("asm_exc_page_fault", "madvise")
        ),
        app("mprotect", "a page's protection changes again and again", 5, ("mprotect",)),
        app("lock", "another thread holds the lock", 3, ("futex", "holder")),
        app("slow-function", "one function takes longer", 1, ("lookup", "spin"), "slow"),
        app("many-calls", "one function is called a hundred times", 2, ("lookup",), "often"),
        Scenario(
            "netfilter",
            "packets of one of four connections pass 1000 rules",
            Cause(
                "netfilter",
                "a long chain",
                "R",
                "functions",
                symbols=("nft_do_chain",),
                above=20_000,
                names=("nft_do_chain",),
            ),
            load=SPREAD,
            disturb=d.netfilter(1000, 1),
            modules=("nf_tables",),
        ),
        Scenario(
            "retransmission",
            "every sixth packet with a request of one of eight connections is lost once",
            Cause(
                "retransmission",
                "TCP sent it again",
                "R",
                "excess",
                names=("tcp_retransmit_skb",),
                above=100_000_000,
            ),
            load=BOUND,
            disturb=d.drop_every(6, d.PORTS),
            modules=("nf_tables", "nft_numgen"),
            expect="the message arrives late: its lifetime in the host begins with the second packet",
        ),
        Scenario(
            "coalescing",
            "packets wait for a timer: the interface's interrupts are deferred by 300 us",
            Cause("coalescing", "deferred interrupt", "R", "excess", names=("napi_watchdog",), above=250_000),
            load=("-c", "4", "-r", "2500", "-n", "40"),
            gro=True,
            disturb=d.defer_interrupts(300),
            expect="the delay is before the message's first timestamp in the host, where the NIC gives none",
        ),
        Scenario(
            "neighbour",
            "redis serves another client on the same core",
            Cause(
                "neighbour",
                "another application's messages",
                "A",
                "marks",
                mark=NEIGHBOUR,
                names=("redis-server",),
            ),
            disturb=d.neighbour("redis", ("-c", "1", "-r", "800", "--value-size", "20000"), NEIGHBOUR),
        ),
        Scenario(
            "user-stack",
            "a UDP server with a network stack of its own, every tenth request slow",
            Cause(
                "user-stack", "one function takes longer", "A", "marks", mark=USER_STACK, names=("lookup",)
            ),
            server="user-stack",
            load=("-P", "echo-udp", "-s", USER_STACK4, "-c", "2", "-r", "0", "-n", "60"),
            expect="arrivals without hand-off and read: the message's end is not in the kernel",
        ),
        Scenario(
            "clock-bent",
            "the system clock is slewed and stepped during the capture",
            load=("-c", "4", "-r", "0", "-n", "60", *NOTICED),
            expect="no cause; times of all clocks still agree",
            disturb=d.clock(d.bend, 0.001),
        ),
        Scenario(
            "overflow",
            "the internal buffer of the trace overflows",
            expect="no cause; the interval is unknown",
            encode=("--overflow", "{from}-{to}"),
            recording="quiet",
        ),
        Scenario(
            "truncated",
            "perf did not empty the AUX buffer in time",
            expect="no cause; the interval is unknown",
            encode=("--truncate", "{from}-{to}"),
            recording="quiet",
        ),
        Scenario(
            "wake-up",
            "the application's core, halted, starts late when a message wakes it",
            Cause(
                "wake-up",
                "the woken core started late",
                "A",
                "wake-ups",
                names=("pv_native_safe_halt",),
                above=100_000,
            ),
            load=("-c", "2", "-r", "1000", "-n", "60"),
            cpus=2,
            disturb=d.busy_peer(400, 1200),
            expect="as a virtual CPU that its host runs late: the emulator's cores take turns",
        ),
        Scenario(
            "cross-core",
            "receive core and application core differ",
            cpus=2,
            expect="hand-off across cores; its latency is the emulator's, which runs cores in turns",
        ),
    )
}
