"""Snapshot directories read without a cluster: list, verify, inspect, export, download.

Everything here only reads copy directories, through `viewstamp.format`; exports and downloads are
written elsewhere. A good copy is preferred over a bad one, and bad ones are reported.
"""

from __future__ import annotations
