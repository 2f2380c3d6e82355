"""Snapshot directories read without a cluster: list, verify, inspect, export, download.

Everything here only reads copy directories, through `viewstamp.format`; what it writes (exports,
downloads) goes elsewhere. A good copy is preferred over a bad one, and bad ones are told.
"""

from __future__ import annotations
