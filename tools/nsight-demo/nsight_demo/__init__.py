# SPDX-License-Identifier: GPL-2.0-only
"""A server and its load on one machine, with a program in its way: what NSight is shown on, and tested with.

``Bed`` makes two network namespaces joined by a veth pair, starts unmodified servers in one and the load client in the other,
and removes everything on every way out.
"""
