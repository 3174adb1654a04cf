# SPDX-License-Identifier: GPL-2.0-only
"""Stamps chosen packets at every virtual layer they pass, and collects the stamps into one directory.

Standard library only, and ``nsight_record`` for what every recorder needs: directories, namespaces, errors.
"""

__version__ = "0.1.0"
