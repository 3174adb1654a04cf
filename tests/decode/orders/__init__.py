# SPDX-License-Identifier: GPL-2.0-only
"""Orders of Intel PT packets that hardware may write, made at random with what they mean."""
