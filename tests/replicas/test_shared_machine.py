"""Replicas on one machine as real processes: backups let the primary come first."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.replicas.trial import SETTLE_TIMEOUT_S, Trial, agree, lead, trial, under_load
from viewstamp.cluster import LocalCluster
from viewstamp.cluster.local import COORDINATOR, SERVICES
from viewstamp.cluster.precedence import EQUAL_NICE, YIELDING_NICE

pytestmark = pytest.mark.long

OPERATIONS = 150
LEADING = dict.fromkeys((COORDINATOR, *SERVICES), EQUAL_NICE)
YIELDING = {COORDINATOR: EQUAL_NICE, **dict.fromkeys(SERVICES, YIELDING_NICE)}


def shares(replica: LocalCluster) -> dict[str, int]:
    """Return what the kernel says of a replica's processes, by name."""
    return {
        name: int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
        for name, pid in replica.pids.items()
    }


def comes(replica: LocalCluster, *, first: bool) -> bool:
    """Whether a replica says so, and has its share, where there are any."""
    if replica._supervised[COORDINATOR].yields is first:
        return False
    is_possible = replica._precedence._is_possible
    return not is_possible or shares(replica) == (LEADING if first else YIELDING)


async def until_shared(made: Trial) -> None:
    """Wait until the primary comes first, and the services of all others last."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            primary = await made.primary()
            with suppress(FileNotFoundError):  # one restarts
                replicas = enumerate(made.replicas.replicas)
                if all(comes(each, first=number == primary) for number, each in replicas):
                    return
            await asyncio.sleep(0.05)


async def test_the_primary_comes_first(tmp_path: Path) -> None:
    """Shares follow the primary when it steps down under load, and nothing is lost over it."""
    async with trial(tmp_path) as made:
        await until_shared(made)
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            await lead(made, await made.primary(), leads=False)
            await made.until_answered(OPERATIONS)
        await until_shared(made)
        await agree(made)
