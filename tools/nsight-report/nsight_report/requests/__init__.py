# SPDX-License-Identifier: GPL-2.0-only
"""Requests: received messages joined with their replies, and sent ones with what came back."""
