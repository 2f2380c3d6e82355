"""A state transfer asks the replicas of the moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.vsr import SnapshotNeeded
from tests.coordinator.snapshot.files.transfer_trial import NEWEST, TransferTrial


@pytest.mark.parametrize("newcomer", [4, 7])
async def test_a_newcomer_is_asked_and_a_removed_replica_is_not(
    newcomer: int, tmp_path: Path
) -> None:
    """While a transfer fails at all that there are, another one comes, and has the snapshot."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.gone = {0, 1}
    trial.transfer.needed(SnapshotNeeded(1, NEWEST, 10 * NEWEST))
    await trial.until(lambda: bool(trial.said))
    asked_before = len(trial.fetcher.asked)
    trial.others = (1, newcomer)
    await trial.run()
    asked = trial.fetcher.asked[asked_before:]
    # Then replica 1 is asked which layers it has.
    assert [who for what, who, *_ in asked if what == "manifest"] == [(1,), (newcomer,), (1,)]
    assert {each for _, who, *_ in asked for each in who} == {1, newcomer}
