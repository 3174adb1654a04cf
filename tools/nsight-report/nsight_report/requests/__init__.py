# SPDX-License-Identifier: GPL-2.0-only
"""Requests: received messages joined to their replies, and sent ones to what came back."""
