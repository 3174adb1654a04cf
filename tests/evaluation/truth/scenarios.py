# SPDX-License-Identifier: GPL-2.0-only
"""What is injected where, and which answer is right.

Two cores are enough: servers run on core 1, client and recording programs on core 0. If the
disturbed receive core is core 0, the client shares core 1 with the server, since it could not
send from the disturbed core while the disturbance runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from machinery.testbed.injections import Firewall, Flood, Hog, Injection, LateAccept, Neighbour, Quota, Stop
from nsight_demo.namespaces import LinkOptions

APP_CPU, LOAD_CPU = 1, 0
PORTS = 20000  # local ports of the client's connections, if a scenario distinguishes them
LOAD = ["-c", "8", "-r", "2000"]
N_SLOW_PORTS = 2


@dataclass(frozen=True)
class Scenario:
    """One injection into one server's traffic.

    ``causes``: root causes (as the report writes them) that correctly name the injection.
    ``truth``: ``intervals`` (a message is affected as far as its lifetime lies in the injection's log, on the cores that the log
    names) or ``bursts`` (messages that the client sent in a burst, or while it waited for one). ``live``: a second run
    compares every message with the client's own log.

    ``without``: of a control, causes that may not be in the list at all. ``beside``: programs of the injection that ran even if it
    did not act; naming them is no false alarm.
    """

    name: str
    server: str
    injection: Callable[[], Injection]
    causes: tuple[str, ...]
    link: LinkOptions = field(default_factory=LinkOptions)
    load: tuple[str, ...] = tuple(LOAD)
    load_cpu: int = LOAD_CPU
    truth: str = "intervals"
    framing: str = "none"
    live: bool = False
    note: str = ""
    without: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def as_control(self) -> Scenario:
        """The scenario of a recording in which its injection never acted: its causes may not be named."""
        return replace(self, name=f"{self.name}: never", causes=(), without=self.causes)


HOG = ["-f", "10", "-b", "3000", "-i", "37000"]  # real-time: never preempted, so its log is the truth
ACCEPTED = ("-r", "300")
QUOTA = ["-b", "15000", "-i", "200000"]
RECEIVE = ("Receive processing (R)", "OS threads (R)", "Receive processing (A)", "OS threads (A)")
#: Its packets are dropped after a firewall's rules. A recording by port leaves them out, but names where they are dropped.
FLOOD = (*RECEIVE, "port 9 receive (R)", "port 9 receive (A)")
HTTP_NEIGHBOUR = ["-r", "1", "--burst", "12", "--burst-every", "40", "--path", "/big.html"]
REDIS_NEIGHBOUR = ["-r", "1", "--burst", "40", "--burst-every", "40", "--burst-value-size", "200000"]


def burst(n: int, connections: int, value_size: int, kind: str = "get") -> tuple[str, ...]:
    """Load options: base traffic, and n requests at once every 100 ms over this number of connections."""
    sizes = ["--burst-value-size", str(value_size), "--burst-kind", kind]
    return (*LOAD, "--burst", str(n), "--burst-every", "100", "--burst-connections", str(connections), *sizes)


SCENARIOS: tuple[Scenario, ...] = (
    # Few requests: on a slow host 2,000 per second keep nginx busy half of the time, and then requests do wait for each other.
    *(
        Scenario("none", s, Injection, (), load=("-c", "8", "-r", "500"), live=True)
        for s in ("memcached", "redis", "nginx")
    ),
    # As they were before their load was reduced, because effects of a busy host alone made them fail.
    *(
        Scenario("none, 2,000 requests/s", s, Injection, (), live=True)
        for s in ("memcached", "redis", "nginx")
    ),
    Scenario("none, a connection for each request", "acceptor", Injection, (), load=ACCEPTED, live=True),
    Scenario(
        "server accepts late",
        "acceptor",
        lambda: LateAccept(30, 15),
        ("Accept queue (A)",),
        load=ACCEPTED,
        note="one thread accepts and is away for 15 ms after every 30th connection; four others answer",
    ),
    Scenario(
        "softirq load of 1,000 datagrams",
        "memcached",
        lambda: Flood(0, ["-b", "1000"]),
        FLOOD,
        link=LinkOptions(rps_cpu=APP_CPU),
    ),
    *(
        Scenario(
            "hog on the application core", s, lambda: Hog(APP_CPU, HOG), ("hog (A)",), live=s == "memcached"
        )
        for s in ("memcached", "redis", "nginx")
    ),
    *(
        Scenario(
            "hog on the receive core",
            s,
            lambda: Hog(0, HOG),
            ("hog (R)",),
            link=LinkOptions(napi_cpu=0),
            load_cpu=APP_CPU,
            note="threaded NAPI on core 0: a plain veth receives in its sender's context",
        )
        for s in ("memcached", "redis")
    ),
    *(
        Scenario("server stopped", s, lambda: Stop(5, 100), ("Application stopped (A)",))
        for s in ("memcached", "redis", "nginx")
    ),
    *(
        Scenario("CPU quota used up", s, lambda: Quota(APP_CPU, QUOTA), ("CPU quota (A)",), beside=("hog",))
        for s in ("memcached", "nginx")
    ),
    Scenario(
        "20 requests at once, 20 connections",
        "memcached",
        Injection,
        ("Head-of-line blocking (A)",),
        load=burst(20, 20, 100_000),
        truth="bursts",
    ),
    Scenario(
        "20 requests at once, 20 connections",
        "redis",
        Injection,
        ("Head-of-line blocking (A)",),
        load=burst(20, 20, 100_000),
        truth="bursts",
    ),
    Scenario(
        "20 requests at once, 1 connection",
        "memcached",
        Injection,
        ("Head-of-line blocking (A)",),
        load=burst(20, 1, 30_000, "set"),
        truth="bursts",
        framing="memcached",
        note="messages cut by framing: one read returns several requests",
    ),
    Scenario(
        "nginx shares the core", "memcached", lambda: Neighbour("nginx", HTTP_NEIGHBOUR), ("nginx (A)",)
    ),
    Scenario(
        "redis shares the core",
        "nginx",
        lambda: Neighbour("redis", REDIS_NEIGHBOUR),
        ("redis-server (A)",),
    ),
    *(
        Scenario(
            "nftables rules",
            s,
            lambda: Firewall(30000, list(range(PORTS, PORTS + N_SLOW_PORTS))),
            RECEIVE,
            load=("-c", "100", "-r", "2000", "--bind-port", str(PORTS)),
            note="the chain is passed by 2 of 100 connections; only the softirq is visible in mode tracepoints",
        )
        for s in ("memcached",)
    ),
    Scenario(
        "softirq load",
        "memcached",
        lambda: Flood(0, ["-b", "800", "-e", "40000"], n_rules=1000),
        FLOOD,
        load=("-c", "20", "-r", "500"),
        link=LinkOptions(rps_cpu=APP_CPU),
        note="receive packet steering to core 1, which is receive and application core",
    ),
    Scenario(
        "softirq load behind a bridge",
        "memcached",
        lambda: Flood(0, ["-b", "800", "-e", "40000"], n_rules=1000),
        FLOOD,
        load=("-c", "20", "-r", "500"),
        link=LinkOptions(bridge_rps_cpu=APP_CPU),
        note="packets arrive on core 0, whose bridge steers them to core 1, which hands them off",
    ),
)

#: In every sample: messages delimited by framing, and slow messages identified by the client's log.
ALWAYS = ("20 requests at once, 1 connection / memcached", "hog on the application core / memcached")


def label(scenario: Scenario) -> str:
    """Readable name of a scenario."""
    return f"{scenario.name} / {scenario.server}"


def sample(n: int, seed: int) -> list[Scenario]:
    """``n`` scenarios, in their order: those of ALWAYS, one control, and others drawn by ``seed``."""
    rng = random.Random(seed)
    chosen = [s for s in SCENARIOS if label(s) in ALWAYS]
    chosen.append(rng.choice([s for s in SCENARIOS if not s.causes]))
    rest = [s for s in SCENARIOS if s.causes and s not in chosen]
    chosen += rng.sample(rest, n - len(chosen))
    return [s for s in SCENARIOS if s in chosen]
