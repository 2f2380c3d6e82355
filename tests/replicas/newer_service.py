"""A domain service that knows one more feature level, with its newest behaviour at it.

`python -m tests.replicas.newer_service MODULE FLAGS...`
"""

from __future__ import annotations

import runpy
import sys

from tests.replicas.odd_coordinator import know_the_next_level

if __name__ == "__main__":
    know_the_next_level()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
