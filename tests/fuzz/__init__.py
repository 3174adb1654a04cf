# SPDX-License-Identifier: GPL-2.0-only
"""What reads hostile files, fed with such files, guided by coverage."""
