# SPDX-License-Identifier: GPL-2.0-only
"""Causes of jitter that are no message's: injected into steps of a program, and what the diagnosis says of them."""
