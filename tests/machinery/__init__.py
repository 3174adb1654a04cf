# SPDX-License-Identifier: GPL-2.0-only
"""What tests and evaluation run on: harness, load, testbed, guests in QEMU, emulated Intel PT."""
