# SPDX-License-Identifier: GPL-2.0-only
"""Which side of a connection asks: the peer, whose requests come in, or the recorded process."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..losses import Ledger
from .rows import I64, Connections

#: Numbers in column ``role``.
ROLES = ["server", "client"]
SERVER, CLIENT = range(2)
#: Ports that clients get by default begin here: net.ipv4.ip_local_port_range.
EPHEMERAL = 32_768


def roles(connections: Connections, ledger: Ledger) -> I64:
    """By connection SERVER or CLIENT; -1 where there is no message.

    A server's port has many peers; a client has many ports for one port of a peer. If a single connection shows neither, the lower
    port is the server's, since clients get theirs from a range above; if both are equal or in that range, the side that is
    asked first is the server.
    """
    there = np.flatnonzero(connections["proto"] >= 0)
    frame = pd.DataFrame(
        {name: connections[name][there] for name in ("proto", "netns", "lport", "raddr", "rport")}
    )
    own = frame.groupby(["proto", "netns", "lport"])["proto"].transform("size").to_numpy()
    peers = frame.groupby(["proto", "netns", "raddr", "rport"])["proto"].transform("size").to_numpy()
    lport, rport = (frame[name].to_numpy() for name in ("lport", "rport"))
    client = np.where(own != peers, own < peers, lport > rport)
    unclear = (own == peers) & ((lport == rport) | (np.minimum(lport, rport) >= EPHEMERAL))
    client = np.where(unclear, connections["first_tx"][there] == 1, client)
    ledger.add("request_roles_by_first_message", int(np.count_nonzero(unclear)))
    role = np.full(len(connections["proto"]), -1)
    role[there] = np.where(client, CLIENT, SERVER)
    return role
