"""A primary that is told to stop has another replica lead before it closes its port."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.replicas.trial import agree, trial, under_load
from viewstamp.cluster.local import COORDINATOR

pytestmark = pytest.mark.long


async def test_a_stopped_primary_hands_over(tmp_path: Path) -> None:
    """Each primary that gets SIGTERM hands over, callers go on, and all replicas agree."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            for _ in range(3):
                await made.until_answered(100)
                stopped = await made.primary()
                made.replicas.replicas[stopped].kill(COORDINATOR, signal.SIGTERM)
                await made.until_answered(100)
                await made.replicas.wait_ready()
                log = (
                    made.replicas.replica_directory(stopped) / "log" / "coordinator.log"
                ).read_text()
                assert "another replica leads" in log
        await agree(made)
