# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios drawn at random from a seed: servers, loads, intensities, sizes, times and the names of programs.

So no constant of the diagnosis can be tuned to them. The ranges are realistic for users and measurable by the truth: disturbances
of 0.2 to 15 ms, servers below half of their capacity.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Callable

from machinery.testbed.injections import Flood, Hog, Injection, LateAccept, Neighbour, Stop
from nsight_demo.namespaces import LinkOptions

from .scenarios import APP_CPU, FLOOD, Scenario

SERVERS = ("memcached", "redis", "nginx")
#: Several threads, two processes, datagrams, and an interpreter, which is slower.
PYTHON = ("asyncio", "datagrams", "front")
MORE = (*SERVERS, "memcached-4", *PYTHON)


def drawn(n: int, seed: int) -> list[Scenario]:
    """``n`` scenarios, each of a random kind; the same for the same seed."""
    rng = random.Random(seed)
    return [rng.choice(KINDS)(rng, f"drawn {seed}.{number}") for number in range(1, n + 1)]


def _between(rng: random.Random, low: float, high: float) -> int:
    """Log-uniform: every order of magnitude of the range is equally likely."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _name(rng: random.Random) -> str:
    """A program name that is in no table of categories."""
    letters = string.ascii_lowercase
    return rng.choice(letters) + "".join(rng.choices(letters + string.digits, k=rng.randint(3, 13)))


def _load(rng: random.Random, server: str, most: int = 2500) -> tuple[str, ...]:
    most = min(most, 800) if server in PYTHON else most
    options = ["-c", str(_between(rng, 2, 40)), "-r", str(_between(rng, 200, most))]
    if server != "nginx":
        options += ["--value-size", str(_between(rng, 10, 1400 if server == "datagrams" else 8000))]
    return tuple(options)


def _turns(rng: random.Random) -> list[str]:
    """Options of a hog that occupies its core for 2 to 20 % of the time."""
    burn = _between(rng, 200, 15_000)
    share = rng.uniform(0.02, 0.2)
    return ["-f", "10", "-b", str(burn), "-i", str(round(burn / share - burn))]


def _none(rng: random.Random, name: str) -> Scenario:
    server = rng.choice(MORE)
    return Scenario(f"{name}: none", server, Injection, (), load=_load(rng, server, 800))


def _hog(rng: random.Random, name: str) -> Scenario:
    server, program, turns = rng.choice(MORE), _name(rng), _turns(rng)
    return Scenario(
        f"{name}: {program} on the application core",
        server,
        lambda: Hog(APP_CPU, turns, program),
        (f"{program} (A)",),
        load=_load(rng, server),
    )


def _receive_hog(rng: random.Random, name: str) -> Scenario:
    server, program, turns = rng.choice(SERVERS[:2]), _name(rng), _turns(rng)
    return Scenario(
        f"{name}: {program} on the receive core",
        server,
        lambda: Hog(0, turns, program),
        (f"{program} (R)",),
        link=LinkOptions(napi_cpu=0),
        load=_load(rng, server),
        load_cpu=APP_CPU,
    )


def _stop(rng: random.Random, name: str) -> Scenario:
    server, ms, every = rng.choice(MORE), rng.uniform(1, 15), rng.uniform(60, 300)
    return Scenario(
        f"{name}: stopped for {ms:.1f} ms",
        server,
        lambda: Stop(ms, every),
        ("Application stopped (A)",),
        load=_load(rng, server),
    )


def _burst(rng: random.Random, name: str) -> Scenario:
    server = rng.choice(SERVERS[:2])
    n, connections, size = rng.randint(8, 40), rng.randint(4, 40), _between(rng, 30_000, 300_000)
    options = ("--burst", str(n), "--burst-every", str(rng.randint(60, 250)), "--burst-value-size", str(size))
    return Scenario(
        f"{name}: {n} requests of {size} bytes at once",
        server,
        Injection,
        ("Head-of-line blocking (A)",),
        load=(*_load(rng, server, 1500), *options, "--burst-connections", str(min(n, connections)), "--burst-kind", "get"),
        truth="bursts",
    )  # fmt: skip


def _neighbour(rng: random.Random, name: str) -> Scenario:
    n, every, size = rng.randint(6, 40), rng.randint(30, 150), _between(rng, 50_000, 400_000)
    options = ["-r", "1", "--burst", str(n), "--burst-every", str(every)]
    if rng.random() < 0.5:
        server, other, comm, more = "memcached", "nginx", "nginx", ["--path", "/big.html"]
    else:
        server, other, comm, more = "nginx", "redis", "redis-server", ["--burst-value-size", str(size)]
    return Scenario(
        f"{name}: {other} beside it, {n} requests at once",
        server,
        lambda: Neighbour(other, [*options, *more]),
        (f"{comm} (A)",),
        load=_load(rng, server, 1500),
    )


def _flood(rng: random.Random, name: str) -> Scenario:
    burst, every, rules = _between(rng, 200, 1500), rng.randint(25_000, 90_000), _between(rng, 200, 1500)
    server = rng.choice(("memcached", *PYTHON))
    link = LinkOptions(rps_cpu=APP_CPU) if rng.random() < 0.5 else LinkOptions(bridge_rps_cpu=APP_CPU)
    return Scenario(
        f"{name}: {burst} datagrams through {rules} rules",
        server,
        lambda: Flood(0, ["-b", str(burst), "-e", str(every)], n_rules=rules),
        FLOOD,
        load=_load(rng, server, 800),
        link=link,
    )


def _late_accept(rng: random.Random, name: str) -> Scenario:
    after, ms = rng.randint(8, 60), rng.uniform(1, 20)
    return Scenario(
        f"{name}: accepts {ms:.1f} ms late",
        "acceptor",
        lambda: LateAccept(after, ms),
        ("Accept queue (A)",),
        load=("-r", str(_between(rng, 100, 500))),
    )


KINDS: tuple[Callable[[random.Random, str], Scenario], ...] = (
    _none, _hog, _receive_hog, _stop, _burst, _neighbour, _flood, _late_accept
)  # fmt: skip
