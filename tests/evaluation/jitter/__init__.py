# SPDX-License-Identifier: GPL-2.0-only
"""Causes of jitter outside of messages: injected into steps of a program, and diagnosed."""
