# SPDX-License-Identifier: GPL-2.0-only
"""A server and its load on one machine, disturbed by another program: for demonstrations and tests of NSight.

``Bed`` makes two network namespaces joined by a veth pair, starts unmodified servers in one and the load
client in the other, and removes everything whenever it exits.
"""
