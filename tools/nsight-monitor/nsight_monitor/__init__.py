# SPDX-License-Identifier: GPL-2.0-only
"""Shows and exports where network messages wait on this host, from histograms in the kernel.

Standard library and nsight_record only; ``--prometheus`` needs prometheus_client.
"""

__version__ = "0.1.0"
