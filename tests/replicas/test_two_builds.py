"""Two real builds side by side: a commit that adds an RPC, and the commit before it.

Both are the whole, unchanged trees of their commits, found in the history by their content. The old
one knows feature level 2, and not SetClusterDescription, which is of level 3. Later builds have
other agreed limits, so they cannot run beside these two.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.real_builds import files_with, find_pair, write_tree
from tests.replicas.snapshotting import DEADLINE_S, snapshot
from tests.replicas.test_upgrades import (
    OPERATIONS,
    REPLICAS,
    levels_in_force,
    link_is,
    raise_level,
    restarted,
)
from tests.replicas.trial import ReplicasTrial, agree, lead, trial, under_load
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.cluster import ClusterFailed, Program
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_BOUNDED, FEATURE_LEVEL_DESCRIPTION

pytestmark = pytest.mark.long

# The line that the new commit added, the line that the old one had, and the level of each.
NEW_LINE: Final = "FEATURE_LEVEL_DESCRIPTION: Final"
NEW_LEVEL: Final = FEATURE_LEVEL_DESCRIPTION
OLD_LINE: Final = "FEATURE_LEVEL_BOUNDED: Final"
OLD_LEVEL: Final = FEATURE_LEVEL_BOUNDED
NEW_RPC: Final = "SetClusterDescription"
REPOSITORY: Final = Path(__file__).resolve().parents[2]
TEXT: Final = "staging, may be wiped"
LAST: Final = REPLICAS - 1


def both_trees(directory: Path) -> tuple[Path, Path]:
    """Write the trees of the old and the new commit; the RPC must be in the new one alone."""
    commits = find_pair(REPOSITORY, NEW_LINE, OLD_LINE)
    old = write_tree(REPOSITORY, commits.old, directory / "old")
    new = write_tree(REPOSITORY, commits.new, directory / "new")
    known = files_with(old, NEW_RPC)
    assert not known, f"commit {commits.old} must know nothing of {NEW_RPC}, which is in {known}"
    assert files_with(new, NEW_RPC), f"commit {commits.new} must have {NEW_RPC}, which is nowhere"
    return old, new


class OldBuild:
    """Replicas that run the old build from their next start on: all at first."""

    def __init__(self, tree: Path, new_tree: Path) -> None:
        self.replicas = set(range(REPLICAS))
        self._tree = tree
        self._new_tree = new_tree

    def adapt(self, replica: int, program: Program) -> Program:
        """Return the program of a replica, from the tree of its build."""
        tree = self._tree if replica in self.replicas else self._new_tree
        # The working directory has this build's packages: a safe path keeps Python away from it.
        variables = (f"PYTHONPATH={tree}", "PYTHONSAFEPATH=1")
        assert program.command[0] == sys.executable
        return replace(program, command=("/usr/bin/env", *variables, *program.command))


@pytest.mark.exhaustive
async def test_a_real_upgrade_up_and_down_under_load(tmp_path: Path) -> None:
    """Replicas change one by one, back, and all; then the level: callers and state go on."""
    old = OldBuild(*both_trees(tmp_path))
    async with trial(tmp_path / "data", callers=3, adapt=old.adapt) as made:
        assert await supported(made) == [OLD_LEVEL] * REPLICAS
        async with under_load(made):
            for replica in range(REPLICAS):
                await moved(made, old, replica, is_old=False)
                if replica == 0:
                    await whoever_leads_refuses(made)
                # Both builds freeze equal sections at one cut.
                await snapshot(made.admin)
            # One replica goes back.
            await moved(made, old, 0, is_old=True)
            await snapshot(made.admin)
        assert await supported(made) == [OLD_LEVEL, *[NEW_LEVEL] * (REPLICAS - 1)]
        with pytest.raises(Refusal, match=f"replica 0 up to {OLD_LEVEL}"):
            await raise_level(made)
        async with under_load(made):
            await moved(made, old, 0, is_old=False)
            await raise_level(made)
            await made.admin.describe_cluster(TEXT, expected_revision=0)
            await an_old_one_is_told(made, old)
            await snapshot(made.admin)
        await agree(made)
        assert await levels_in_force(made) == {FEATURE_LEVEL_DESCRIPTION}
        assert {status.description for status in await made.settled()} == {TEXT}


async def moved(made: ReplicasTrial, old: OldBuild, replica: int, *, is_old: bool) -> None:
    """Give one replica the old build or the new one, by a graceful restart."""
    (old.replicas.add if is_old else old.replicas.discard)(replica)
    await restarted(made, replica)


async def whoever_leads_refuses(made: ReplicasTrial) -> None:
    """A new replica must not admit the command yet; the old ones do not know it."""
    for replica, reason in (
        (0, Reason.REASON_FEATURE_LEVEL_REQUIRED),
        (LAST, Reason.REASON_UNIMPLEMENTED),
    ):
        await lead(made, replica, leads=True)
        await refused(made, reason)


async def refused(made: ReplicasTrial, reason: Reason.ValueType) -> None:
    """Expect a refusal of SetClusterDescription with this reason."""
    with pytest.raises(Refusal) as caught:
        await made.admin.describe_cluster(TEXT)
    assert caught.value.reason == reason


async def an_old_one_is_told(made: ReplicasTrial, old: OldBuild) -> None:
    """A replica with the old build ends and says why; the others serve, and it can return later."""
    odd = made.replicas.replicas[LAST]
    await odd.stop()
    old.replicas.add(LAST)
    await odd.start()
    says = f"level {FEATURE_LEVEL_DESCRIPTION}, and this build knows levels up to {OLD_LEVEL}"
    with pytest.raises(ClusterFailed, match=says):
        await odd.wait_ready()
    await made.until_answered(OPERATIONS)
    await odd.stop()
    old.replicas.discard(LAST)
    await odd.start()
    await made.replicas.wait_ready()
    await link_is(made, LAST, "connected")


async def supported(made: ReplicasTrial) -> list[int]:
    """Return the highest level that each replica says it supports, once all have said it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            levels = [each.feature_level_max for each in (await made.admin.status()).replicas]
            if all(levels):
                return levels
            await asyncio.sleep(0.1)
