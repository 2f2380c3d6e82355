"""The state of generations on disk as a tree of paths, and expressions over its entities.

Entities are read in order, from layers that stay open; nothing holds more than a few of them.
"""

from __future__ import annotations
