"""With what a state begins: the nearest snapshot, and what becomes of a damaged one."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from coordinator.history.messages import ApplyEntries, BeginState, SoughtEntity
from coordinator.mux.stage import Stage
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.snapshot.restore import Loaded
from tests.coordinator.history.past_trial import PastTrial
from tests.past.past_histories import history, sealed
from tests.viewstamp.format.snapshot_builders import small_snapshot
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1.users_pb2 import User
from viewstamp.errors import Refusal
from viewstamp.format.prepare import SealedPrepare

USERS = SoughtEntity(int(Stage.USERS), User.DESCRIPTOR.full_name, frozenset(range(6)))


@pytest.fixture(scope="module")
def entries() -> list[SealedPrepare]:
    """A log of all domains."""
    return sealed(history(Random(1), 10))


async def test_a_nearer_snapshot_comes_first(entries: list[SealedPrepare]) -> None:
    """A state far behind is given up for a snapshot that is nearer to the revision, not for one
    behind it, nor for one behind the revision."""
    trial = PastTrial(entries)
    trial.add_snapshot(entries[4])
    await trial.ask(entries[1].last_revision)
    await trial.ask(entries[3].last_revision)
    assert trial.loads == []
    with pytest.raises(Refusal):
        await trial.ask(entries[6].last_revision)
    with pytest.raises(Refusal):
        await trial.walk(USERS, entries[6].first_revision)
    assert trial.loads == [1, 1]
    await trial.ask(entries[3].last_revision)
    with pytest.raises(Refusal):
        await trial.walk(USERS, entries[6].first_revision)
    assert trial.loads == [1, 1, 1]


async def test_a_state_behind_its_snapshot_goes_on(entries: list[SealedPrepare]) -> None:
    """A snapshot between the state and where it came from is not loaded again."""
    trial = PastTrial(entries)
    await trial.ask(entries[5].last_revision)
    trial.add_snapshot(entries[4])
    await trial.ask(entries[7].last_revision)
    assert trial.loads == []
    applied = [message for message in trial.link.asked if isinstance(message, ApplyEntries)]
    assert len(applied) == len(entries[:8])


class DamagedBlocks(Loaded):
    """A snapshot whose blocks cannot be read any more, once it is open."""

    def blocks(self, stage: int) -> Iterator[tuple[int, bytes]]:
        """Raise NoIntactCopy when the first one is asked for."""
        yield from map(damaged, (stage,))


def damaged(stage: int) -> tuple[int, bytes]:
    """Raise NoIntactCopy."""
    raise NoIntactCopy(f"a block of stage {stage}", [("copies", "a wrong checksum")])


async def test_damage_in_the_midst_of_a_snapshot(
    entries: list[SealedPrepare],
) -> None:
    """Damage found while a snapshot is sent is said to be that, and its files are closed."""
    trial = PastTrial(entries)
    trial.add_snapshot(entries[4])
    closed: list[bool] = []
    manifest, _ = small_snapshot()
    trial.loaded = DamagedBlocks(manifest, {}, lambda: closed.append(True))
    with pytest.raises(Refusal, match="a wrong checksum") as refused:
        await trial.ask(entries[5].last_revision)
    assert refused.value.reason == Reason.REASON_SNAPSHOT_DAMAGED
    assert any(isinstance(message, BeginState) for message in trial.link.asked)
    assert closed == [True]
    assert trial.link.is_ended
