"""Five replicas as real processes: any two of them may die at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.replicas.trial import agree, trial, under_load
from viewstamp.cluster.local import COORDINATOR

pytestmark = pytest.mark.long

REPLICAS: Final = 5
OPERATIONS: Final = 100


@pytest.mark.exhaustive
async def test_two_of_five_die_at_once(tmp_path: Path) -> None:
    """The primary and a backup, then two backups: callers see one history, and all agree."""
    async with trial(tmp_path, REPLICAS) as made:
        async with under_load(made):
            for distances in ((0, 1), (1, 2), (0, 3)):
                await made.until_answered(OPERATIONS)
                primary = await made.primary()
                for distance in distances:
                    made.replicas.replicas[(primary + distance) % REPLICAS].kill(COORDINATOR)
                await made.until_answered(OPERATIONS)
                await made.replicas.wait_ready()
        await agree(made)
