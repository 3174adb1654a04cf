# SPDX-License-Identifier: GPL-2.0-only
"""Infrastructure of tests and evaluation: harness, load, testbed, guests in QEMU, emulated Intel PT."""
