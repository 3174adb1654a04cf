# SPDX-License-Identifier: GPL-2.0-only
"""A server and its load on one machine, disturbed in a known way.

``Testbed`` makes two network namespaces joined by a veth pair, starts unmodified servers in
one and the load client in the other, and removes everything on every way out. ``injections``
disturb the server and log when they did: the truth that a diagnosis is compared with.
"""
