# SPDX-License-Identifier: GPL-2.0-only
"""Known causes injected into real traffic, and whether the diagnosis names them."""
