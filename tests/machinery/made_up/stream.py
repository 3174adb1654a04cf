# SPDX-License-Identifier: GPL-2.0-only
"""Synthetic call streams with injected causes: tables of any size, like those of a recording with Intel PT.

A track is a receive core, an application core and the thread that reads there. Messages of a track follow each other. Each message
is one tree of functions on the receive core, up to the hand-off, and one on the application core, up to the read and beyond. Every
function has a usual time with jitter. An injection adds time to one function, calls it more often, or adds something that
is usually not there; the added time is the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from .tables import table

I64 = npt.NDArray[np.int64]

#: The injections: name, and the (anomaly's kind, its subject, side) of a right diagnosis in mode intel-pt.
CAUSES: dict[str, tuple[str, str, str]] = {
    "nic delay": ("idle", "before arrival", "R"),
    "hog on the receive core": ("thread", "rxhog", "R"),
    "slow function (R)": ("function", "tcp_v4_rcv", "R"),
    "late wake-up": ("idle", "wake-up", "A"),
    "hog on the application core": ("thread", "hog", "A"),
    "interrupt": ("hardirq", "asm_common_interrupt", "A"),
    "slow function (A)": ("function", "tcp_recvmsg_locked", "A"),
    "frequent function": ("function", "skb_copy_datagram_iter", "A"),
    "unexpected function": ("function", "tcp_rcv_space_adjust", "A"),
    "stall": ("stall", "{last helper} (memory access)", "A"),
    "lock wait": ("wait", "sleeping in futex", "A"),
    "head-of-line blocking": ("hol", "same connection", "A"),
}
#: The same in mode tracepoints, which records no functions.
AT_TRACE = {
    "slow function (R)": ("softirq", "NET_RX", "R"),
    "slow function (A)": ("own", "read", "A"),
    "frequent function": ("own", "read", "A"),
    "unexpected function": ("own", "read", "A"),
    "stall": ("own", "read", "A"),
}

#: Trees as (depth, kind, symbol, usual ns). Nodes with usual 0 exist only when an injection adds time to them.
RECEIVE = (
    (0, "idle", "swapper", 0),
    (0, "idle", "swapper", 1500),
    (0, "thread", "rxhog", 0),
    (0, "thread", "ksoftirqd", 150),
    (1, "softirq", "NET_RX", 120),
    (2, "function", "__napi_poll", 90),
    (3, "function", "mlx5e_napi_poll", 260),
    (4, "function", "mlx5e_poll_rx_cq", 340),
    (4, "function", "napi_gro_receive", 180),
    (3, "function", "netif_receive_skb_list_internal", 110),
    (4, "function", "ip_rcv", 160),
    (5, "function", "ip_rcv_core", 70),
    (4, "function", "ip_local_deliver", 60),
    (5, "function", "tcp_v4_rcv", 420),
    (6, "function", "tcp_v4_do_rcv", 150),
    (7, "function", "tcp_rcv_established", 380),
    (8, "function", "tcp_queue_rcv", 90),
    (8, "function", "sock_def_readable", 210),
)
APPLICATION = (
    (0, "idle", "swapper", 0),
    (0, "idle", "swapper", 1800),
    (0, "thread", "hog", 0),
    (0, "thread", "server", 250),
    (1, "hardirq", "asm_common_interrupt", 0),
    (1, "syscall", "epoll_wait", 300),
    (2, "function", "ep_send_events", 260),
    (1, "syscall", "futex", 0),
    (0, "idle", "swapper", 0),
    (0, "thread", "server", 190),
    (1, "syscall", "read", 160),
    (2, "function", "ksys_read", 110),
    (3, "function", "sock_read_iter", 90),
    (4, "function", "tcp_recvmsg", 130),
    (5, "function", "lock_sock_nested", 80),
    (6, "stall", "memory access", 0),
    (5, "function", "tcp_recvmsg_locked", 520),
    (6, "function", "skb_copy_datagram_iter", 210),
    (6, "function", "skb_copy_datagram_iter", 0),
    (6, "function", "skb_copy_datagram_iter", 0),
    (6, "function", "skb_copy_datagram_iter", 0),
    (6, "function", "tcp_rcv_space_adjust", 0),
    # After the read, until the thread waits again.
    (0, "thread", "server", 200),
    (1, "function", "process_command", 900),
    (1, "syscall", "sendmsg", 700),
    (1, "syscall", "epoll_wait", 150),
)
HOL = list(CAUSES).index("head-of-line blocking")
#: The part of the tree that a message has if its thread was busy when it arrived.
BESIDE_HOL = [
    i
    for i, (name, (_, _, side)) in enumerate(CAUSES.items())
    if side == "A" and name not in ("head-of-line blocking", "late wake-up")
]
CONTEXTS = ("thread", "idle", "syscall", "softirq", "hardirq")
TID, PERIOD_NS, START_NS = 1000, 60_000, 10**12


class Tree:
    """Nodes in order of their begin.

    ``last``: the last node below each; ``context``: the one it is in; ``is_cut``: a system call that the thread waits in.
    """

    def __init__(self, rows: tuple[tuple[int, str, str, int], ...], fan: int) -> None:
        wide: list[tuple[int, str, str, int]] = []
        for depth, kind, symbol, ns in rows:
            wide.append((depth, kind, symbol, ns))
            if kind == "function" and ns:
                wide += [(depth + 1, "function", f"{symbol}_helper{i}", 40) for i in range(fan)]
        self.depth = np.array([row[0] for row in wide])
        self.kind = np.array([row[1] for row in wide], object)
        self.symbol = np.array([row[2] for row in wide], object)
        self.usual = np.array([row[3] for row in wide], float)
        n = len(wide)
        self.parent, self.last, self.context = np.full(n, -1), np.arange(n), np.arange(n)
        stack: list[int] = []
        for i in range(n):
            del stack[self.depth[i] :]
            self.parent[i] = stack[-1] if stack else -1
            stack.append(i)
            self.last[stack] = i
            self.context[i] = next(j for j in reversed(stack) if self.kind[j] in CONTEXTS)
        # A system call that is cut by the thread's context switch: idle time follows, or nothing.
        after = [next((j for j in range(i + 1, n) if self.depth[j] <= self.depth[i]), n) for i in range(n)]
        kinds = np.append(self.kind, "idle")
        self.is_cut = (self.kind == "syscall") & (kinds[after] == "idle")

    def place(self, symbol: str, nth: int = 0) -> int:
        """Index of the nth node with this symbol."""
        return int(np.flatnonzero(self.symbol == symbol)[nth])


@dataclass
class World:
    """Tables of the schema by name; ``added``: ns of each message (rows) by each of CAUSES (columns)."""

    tables: dict[str, pa.Table]
    added: I64
    fan: int

    @property
    def cause(self) -> I64:
        """Index in CAUSES of each message's largest cause; -1 for none."""
        return np.where(self.added.any(axis=1), self.added.argmax(axis=1), -1)

    @property
    def ns(self) -> I64:
        """The time that this cause took."""
        return self.added.max(axis=1)

    @property
    def n_calls(self) -> int:
        """Rows of ``calls``."""
        return int(self.tables["calls"].num_rows)

    def expected(self, mode: str) -> dict[str, tuple[str, str, str]]:
        """For each cause the kind, subject and side of the anomaly that names it."""
        last = f"lock_sock_nested_helper{self.fan - 1}" if self.fan else "lock_sock_nested"
        found = {name: (k, s.replace("{last helper}", last), side) for name, (k, s, side) in CAUSES.items()}
        return found if mode == "intel-pt" else found | AT_TRACE

    def at_trace(self) -> World:
        """The same without functions, as tracepoints record it."""
        calls = self.tables["calls"]
        kept = pc.invert(pc.is_in(calls["kind"].cast(pa.string()), pa.array(["function", "stall"])))
        return replace(self, tables=self.tables | {"calls": calls.filter(kept)})


def world(
    n_messages: int,
    seed: int,
    share: float = 0.02,
    tracks: int = 4,
    fan: int = 8,
    most: int = 1,
    between: tuple[int, int] = (10_000, 300_000),
    callers: float = 0.0,
) -> World:
    """``n_messages`` in all; ``share`` of them have one cause each, evenly among the causes, or up to ``most`` causes.

    Each cause takes a time ``between`` these limits, in ns, by default 10 to 300 us, with equally many of each order of magnitude.
    ``callers``: after a slow function, its caller itself takes this share of the cause's time longer, as with a cold cache. It is
    the same cause.
    """
    random = np.random.default_rng(seed)
    parts = [
        Track(track, n_messages // tracks, random, share, fan, most=most, between=between, callers=callers)
        for track in range(tracks)
    ]
    messages = pd.concat([track.messages() for track in parts], ignore_index=True)
    order = np.argsort(messages["first_ns"].to_numpy(), kind="stable")
    messages = messages.iloc[order].assign(message_id=np.arange(len(order)))
    calls, contexts, offset = [], [], 0
    for track in parts:
        for core in (track.receive, track.application):
            frame, intervals = core.tables(offset)
            calls.append(frame)
            contexts.append(intervals)
            offset += len(frame)
    states = pd.concat([track.states() for track in parts])
    tables = {
        "messages": table("messages", messages),
        "calls": table("calls", pd.concat(calls)),
        "contexts": table("contexts", pd.concat(contexts)),
        "thread_states": table("thread_states", states),
    }
    return World(tables, np.concatenate([track.added for track in parts])[order], fan)


class Core:
    """The work of one core for the messages of a track: ns of each node (messages x nodes), back to back."""

    def __init__(self, tree: Tree, cpu: int, tid: int, since: int) -> None:
        self.tree, self.cpu, self.tid, self.since = tree, cpu, tid, since
        self.ns: I64 = np.zeros((0, len(tree.usual)), np.int64)

    def draw(self, n: int, random: np.random.Generator) -> None:
        """Usual times with a jitter of a tenth, sometimes of half."""
        usual = self.tree.usual
        wide = np.where(random.random((n, len(usual))) < 0.02, 0.5, 0.1)
        self.ns = np.rint(usual * np.exp(random.standard_normal((n, len(usual))) * wide)).astype(np.int64)

    def ends(self) -> I64:
        """When each node's own time ends."""
        return np.cumsum(self.ns.reshape(-1)).reshape(self.ns.shape) + self.since

    def tables(self, offset: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Rows of ``calls`` and ``contexts``; numbers of calls begin at ``offset``."""
        tree = self.tree
        end = self.ends()
        start = end - self.ns
        until = end[:, tree.last]
        there = until > start
        number = np.cumsum(there.reshape(-1)).reshape(there.shape) - 1 + offset
        parent = np.where(tree.parent < 0, -1, number[:, tree.parent])
        _, node = np.nonzero(there)
        is_idle = tree.kind == "idle"
        tid = np.where(is_idle, 0, self.tid)
        tid[np.isin(tree.symbol, ["hog", "rxhog", "ksoftirqd"])] = 50 + self.cpu
        dur = (until - start)[there]
        calls = pd.DataFrame(
            {
                "call_id": number[there], "parent_id": parent[there], "depth": tree.depth[node],
                "kind": _category(tree.kind, node), "symbol": _category(tree.symbol, node),
                "dso": _category(np.where(tree.kind == "function", "[kernel.kallsyms]", ""), node),
                "cpu": self.cpu, "pid": tid[tree.context][node], "tid": tid[tree.context][node],
                "start_ns": start[there], "dur_ns": dur, "self_ns": self.ns[there],
                "start_known": "measured", "end_known": _category(np.where(tree.is_cut, "inferred", "measured"), node),
                "before": _category(np.where(tree.kind == "stall", np.append("", tree.symbol[:-1]), ""), node),
                "gap_cause": _category(np.where(tree.kind == "stall", tree.symbol, ""), node),
            }
        )  # fmt: skip
        # Own times of nodes that follow each other in one context are one interval.
        first = np.flatnonzero(np.append(True, tree.context[1:] != tree.context[:-1]))
        ns = np.add.reduceat(self.ns, first, axis=1)
        begin = start[:, first]
        of, at = np.nonzero(ns > 0)
        context = tree.context[first[at]]
        top = context.copy()
        while (tree.parent[top] >= 0).any():
            top = np.where(tree.parent[top] >= 0, tree.parent[top], top)
        contexts = pd.DataFrame(
            {
                "cpu": self.cpu, "start_ns": begin[of, at], "end_ns": begin[of, at] + ns[of, at],
                "kind": _category(tree.kind, context), "symbol": _category(tree.symbol, context),
                "pid": tid[top], "tid": tid[top], "comm": _category(tree.symbol, top),
                "call_id": number[of, context],
            }
        )  # fmt: skip
        return calls, contexts


class Track:
    """A receive core, an application core, and the messages between them."""

    def __init__(
        self,
        track: int,
        n: int,
        random: np.random.Generator,
        share: float,
        fan: int,
        since: tuple[int, int] = (START_NS, START_NS),
        most: int = 1,
        between: tuple[int, int] = (10_000, 300_000),
        work: tuple[tuple[int, str, str, int], ...] = APPLICATION,
        callers: float = 0.0,
    ) -> None:
        self.tid = TID + track
        self.receive = Core(Tree(RECEIVE, fan), 2 * track, 0, since[0])
        self.application = Core(Tree(work, fan), 2 * track + 1, self.tid, since[1])
        for core in (self.receive, self.application):
            core.draw(n, random)
        self.added = np.zeros((n, len(CAUSES)), np.int64)
        # Apart from each other, so that none waits behind another one's delay.
        chosen = (
            1 + 3 * random.choice((n - 2) // 3, int(n * share), replace=False)
            if n > 4
            else np.zeros(0, np.int64)
        )
        first = np.arange(len(chosen)) % len(CAUSES)
        low, high = np.log(between)

        def ns(n: int) -> I64:
            return np.rint(np.exp(random.uniform(low, high, n))).astype(np.int64)

        self.added[chosen, first] = ns(len(chosen))
        for message, one in zip(chosen, first) if most > 1 else ():
            beside = BESIDE_HOL if one == HOL else [i for i in range(len(CAUSES)) if i not in (one, HOL)]
            more = random.choice(beside, random.integers(0, most), replace=False)
            self.added[message, more] = ns(len(more))
        self._inject(callers)
        self._arrange(random)

    def _inject(self, callers: float) -> None:
        r, a = self.receive, self.application
        nodes = {
            "nic delay": (r, [r.tree.place("swapper", 1)]),
            "hog on the receive core": (r, [r.tree.place("rxhog")]),
            "slow function (R)": (r, [r.tree.place("tcp_v4_rcv")]),
            "late wake-up": (a, [a.tree.place("swapper", 1)]),
            "hog on the application core": (a, [a.tree.place("hog")]),
            "interrupt": (a, [a.tree.place("asm_common_interrupt")]),
            "slow function (A)": (a, [a.tree.place("tcp_recvmsg_locked")]),
            "frequent function": (a, [a.tree.place("skb_copy_datagram_iter", i) for i in (1, 2, 3)]),
            "unexpected function": (a, [a.tree.place("tcp_rcv_space_adjust")]),
            "stall": (a, [a.tree.place("memory access")]),
            "lock wait": (a, [a.tree.place("swapper", 2)]),
        }
        for number, name in enumerate(CAUSES):
            rows = np.flatnonzero(self.added[:, number])
            ns = self.added[rows, number]
            if name in nodes:
                core, places = nodes[name]
                for place in places:
                    core.ns[rows, place] += ns // len(places)
                if name.startswith("slow function"):
                    beside = np.rint(callers * ns).astype(np.int64)
                    core.ns[rows, core.tree.parent[places[0]]] += beside
                    self.added[rows, number] += beside
            else:
                self.application.ns[rows - 1, a.tree.place("process_command")] += ns
            if name == "lock wait":
                a.ns[rows, a.tree.place("futex")] += 80

    def _arrange(self, random: np.random.Generator) -> None:
        """Place messages in time: idle time between them, or none if the thread was still busy."""
        r, a = self.receive, self.application
        n = len(self.added)
        behind = self.added[:, HOL] > 0
        tree = a.tree
        self._read = tree.place("server", 2)  # everything from here on is after the read
        # The thread does not wait in between.
        for place in (
            tree.place("swapper", 1),
            tree.place("epoll_wait"),
            *self._below(tree.place("epoll_wait")),
        ):
            a.ns[behind, place] = 0
        a.ns[np.flatnonzero(behind) - 1, tree.place("epoll_wait", 1)] = 0
        receive, own = r.ns[:, 1:].sum(axis=1), a.ns[:, 1:].sum(axis=1)
        to_read = a.ns[:, 1 : self._read].sum(axis=1)
        gap = np.rint(random.uniform(0.5, 1.5, n) * PERIOD_NS).astype(np.int64)
        # Finished, handed off: of one behind another the hand-off is 200 ns behind the other's read.
        finish = np.cumsum(np.where(behind, own, gap + receive + own))
        before = np.append(0, finish[:-1])
        previous = np.append(0, (own - to_read)[:-1])
        # Or as much later as the receive core, which took the other before, needs.
        late = np.maximum(200, receive - np.append(0, to_read[:-1]) + 100)
        handoff = np.where(behind, before - previous + late, before + gap + receive)
        self.handoff = handoff + a.since
        self.first = self.handoff - receive
        r.ns[:, 0] = handoff - receive - np.append(r.since - a.since, handoff[:-1])
        a.ns[:, 0] = np.where(behind, 0, handoff - before)
        # The thread was busy for so long; what is usual between hand-off and read it did not have to do.
        spared = sum(
            int(tree.usual[p])
            for p in (
                tree.place("swapper", 1),
                tree.place("epoll_wait"),
                *self._below(tree.place("epoll_wait")),
            )
        )
        self.added[behind, HOL] = np.maximum((before - handoff - spared)[behind], 0)
        ends = a.ends()
        self._starts = ends - a.ns
        self.app = ends[:, self._read - 1]
        self.call = self._starts[:, tree.place("read")]
        send = tree.place("sendmsg")
        self.send, self.sent = self._starts[:, send], ends[:, send]
        #: Until when the two cores are known: another track of the same cores can continue there.
        self.until = int(self.handoff[-1]), int(ends[-1, -1])

    def _below(self, node: int) -> list[int]:
        return list(range(node + 1, int(self.application.tree.last[node]) + 1))

    def messages(self) -> pd.DataFrame:
        """Rows of ``messages``."""
        n = len(self.added)
        arrival = self.handoff - 1000
        stamps = {
            "first_ns": self.first, "last_ns": self.app, "latency_ns": self.app - self.first, "nic_ns": self.first,
            "arrival_ns": arrival, "arrival_last_ns": arrival, "handoff_ns": self.handoff, "call_ns": self.call, "app_ns": self.app,
        }  # fmt: skip
        fixed = {
            "direction": "rx", "conn_id": self.tid, "proto": 6, "netns": 1, "laddr": "10.0.0.1", "lport": 11211,
            "raddr": "10.0.0.2", "rport": 40_000 + self.tid, "nbytes": 100, "request_type": None, "nic_source": "hw",
            "nic_error_ns": 0, "recv_cpu": self.receive.cpu, "handoff_cpu": self.receive.cpu,
            "app_cpu": self.application.cpu, "driver_ns": None, "completion_ns": None, "pid": TID, "tid": self.tid,
            "comm": "server", "fd": 5, "n_arrivals": 1, "n_reads": 1, "n_in_read": 1, "retransmitted": False, "copy_lost": False, "timestamps": "nahr",
        }  # fmt: skip
        return pd.DataFrame({**stamps, **fixed, "byte_start": np.arange(n), "byte_end": np.arange(n) + 1})

    def states(self) -> pd.DataFrame:
        """Rows of ``thread_states`` of the reading thread, as switch records show them."""
        tree = self.application.tree
        ends = self._starts + self.application.ns
        waits, runs = [], []
        wait = tree.place("swapper", 2)
        begin = self._starts[:, tree.place("server")]
        asleep, until = self._starts[:, wait], ends[:, wait]
        end = ends[:, -1]
        last = np.append(self.application.since, end[:-1])
        waits += [(last, begin), (asleep, until)]
        runs += [(begin, asleep), (until, end)]
        rows = [
            pd.DataFrame({"start_ns": low, "end_ns": high, "state": state})
            for pairs, state in ((waits, "waiting"), (runs, "running"))
            for low, high in pairs
        ]
        frame = pd.concat(rows)
        frame = frame[frame["end_ns"] > frame["start_ns"]].sort_values("start_ns")
        more = {
            "tid": self.tid,
            "pid": TID,
            "comm": "server",
            "cpu": self.application.cpu,
            "preempted": False,
            "waker_tid": -1,
        }
        return frame.assign(**more)


def _category(words: npt.NDArray[np.object_], at: I64) -> pd.Categorical:
    names, codes = np.unique(words.astype(str), return_inverse=True)
    return pd.Categorical.from_codes(codes[at], names)
