"""What `python -m past.founding` is asked, for tests that run it in their own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def question(source: Path, into: Path, **changed: Any) -> str:
    """Ask for one replica in a new directory, of all that the source has."""
    asked = {
        "source": str(source),
        "copies": [],
        "generation": 0,
        "archive": None,
        "to_revision": None,
        "to_time_us": None,
        "accept_gaps": False,
        "into": str(into),
        "replicas": 1,
        "only_replica": None,
        "snapshot_directories": [],
        "cluster_id": "ab" * 16,
        "dry_run": False,
        **changed,
    }
    return json.dumps(asked)
