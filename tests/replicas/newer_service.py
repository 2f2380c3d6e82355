"""A domain service that knows one more feature level, with its newest behaviour at it.

`python -m tests.replicas.newer_service MODULE FLAGS...`
"""

from __future__ import annotations

import runpy
import sys

from services.runtime import machine
from tests.replicas.odd_coordinator import NEXT_LEVEL
from viewstamp import limits

if __name__ == "__main__":
    for module in (limits, machine):
        setattr(module, "FEATURE_LEVEL_MAX", NEXT_LEVEL)  # noqa: B010
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
