"""Builds of two versions: replicas change one by one or all at once, or are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.documentation.console import Shell, commands
from tests.replicas import newer_service, odd_coordinator
from tests.replicas.snapshotting import DEADLINE_S, all_restart_from, snapshot
from tests.replicas.trial import ReplicasTrial, agree, trial, under_load
from tests.tidy.tree import ROOT
from viewstamp.cluster import ClusterFailed, Program
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_MAX

pytestmark = pytest.mark.long

OPERATIONS: Final = 100
REPLICAS: Final = 3
MODULE: Final = "coordinator"
NEWER_LEVEL: Final = odd_coordinator.newer_level.__name__
NEWER_WIRE: Final = odd_coordinator.newer_wire.__name__
ODD: Final = 2


class Builds:
    """Builds of replicas, from their next start on; unnamed replicas run the present one."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = dict(enumerate(kinds))

    def adapt(self, replica: int, program: Program) -> Program:
        """Return the program that a replica must run now."""
        kind, words = self.kinds.get(replica), list(program.command)
        if kind is None:
            return program
        if program.name == COORDINATOR:
            at = words.index(MODULE)
            words[at : at + 1] = [odd_coordinator.__name__, kind]
        elif kind == NEWER_LEVEL:
            words.insert(words.index("-m") + 1, newer_service.__name__)
        return replace(program, command=tuple(words))


async def restarted(made: ReplicasTrial, replica: int) -> None:
    """Stop one replica gracefully, start it, and wait until it is ready."""
    stopped = made.replicas.replicas[replica]
    await stopped.stop()
    await made.until_answered(OPERATIONS)
    await stopped.start()
    await made.replicas.wait_ready()
    await made.until_answered(OPERATIONS)


async def test_a_rolling_upgrade_under_load(tmp_path: Path) -> None:
    """Each replica in turn gets a build of the next level; callers, state and snapshots go on."""
    builds = Builds()
    async with trial(tmp_path, adapt=builds.adapt) as made:
        led = set()
        async with under_load(made):
            for replica in range(REPLICAS):
                await made.until_answered(OPERATIONS)
                primary = await made.primary()
                led |= {primary} & {replica}
                builds.kinds[replica] = NEWER_LEVEL
                await restarted(made, replica)
                # Builds of both levels freeze equal sections at one cut.
                last = await snapshot(made.admin)
        assert led, "no primary was stopped"
        await agree(made)
        await all_restart_from(made, last.generation)
        assert await levels_in_force(made) == {FEATURE_LEVEL_MAX}
        # The level in force is in the log and unchanged, so each replica may go back.
        del builds.kinds[0]
        async with under_load(made):
            await restarted(made, 0)
        with pytest.raises(Refusal, match=f"replica 0 up to {FEATURE_LEVEL_MAX}"):
            await raise_level(made)
        builds.kinds[0] = NEWER_LEVEL
        async with under_load(made):
            await restarted(made, 0)
            await raise_level(made)
            await made.until_answered(OPERATIONS)
            # The next primary serves at this level.
            await restarted(made, await made.primary())
            await snapshot(made.admin)
        await agree(made)
        assert await levels_in_force(made) == {FEATURE_LEVEL_MAX + 1}


async def raise_level(made: ReplicasTrial) -> None:
    """Raise the level by one, as soon as every replica has said what it supports."""
    level = (await made.admin.status()).feature_level
    await all_supported_are_known(made)
    await made.admin.raise_feature_level(level + 1, level)


@pytest.mark.exhaustive
async def test_the_level_is_raised_as_the_guide_says(tmp_path: Path) -> None:
    """The commands of the operator's guide raise the level once all builds support a higher one."""
    builds = Builds()
    async with trial(tmp_path / "cluster", callers=0, adapt=builds.adapt) as made:
        await made.replicas.stop()
        builds.kinds = dict.fromkeys(range(REPLICAS), NEWER_LEVEL)
        await made.replicas.start()
        await made.replicas.wait_ready()
        await all_supported_are_known(made)
        assert await levels_in_force(made) == {FEATURE_LEVEL_MAX}
        await asyncio.to_thread(raise_as_the_guide_says, made, tmp_path / "shell")
        assert await levels_in_force(made) == {FEATURE_LEVEL_MAX + 1}


def raise_as_the_guide_says(made: ReplicasTrial, directory: Path) -> None:
    """Run each command of the guide that is about feature levels, beside this cluster."""
    guide = commands("guide", (ROOT / "docs" / "operations.md").read_text())
    found = [each for each in guide if "cluster feature-level" in each.text]
    assert [each.text for each in found if "--raise" in each.text and "--dry-run" not in each.text]
    password, addresses = made.replicas.root_password_path, ",".join(made.replicas.addresses)
    login = f"$ export VIEWSTAMP_ADDRESS={addresses}\n$ viewstamp login --password-file {password}"
    directory.mkdir()
    shell = Shell(directory)
    try:
        for command in (*commands("login", f"```console\n{login}\n```\n"), *found):
            shell.run(command)
    finally:
        shell.close()


async def all_supported_are_known(made: ReplicasTrial) -> None:
    """Wait until each replica has told the primary which levels it supports."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if all(each.feature_level_max for each in (await made.admin.status()).replicas):
                return
            await asyncio.sleep(0.1)


async def levels_in_force(made: ReplicasTrial) -> set[int]:
    """Return the levels in force, as each replica reports its own."""
    return {status.feature_level for status in await made.settled()}


@pytest.mark.exhaustive
async def test_a_rolling_restart_under_load(tmp_path: Path) -> None:
    """The primary is restarted several times, and then each replica in turn."""
    async with trial(tmp_path) as made:
        async with under_load(made):
            for _ in range(REPLICAS):
                await restarted(made, await made.primary())
            for replica in range(REPLICAS):
                await restarted(made, replica)
        await agree(made)


@pytest.mark.exhaustive
async def test_a_new_wire_version_needs_all_to_stop(tmp_path: Path) -> None:
    """Builds of two wire versions refuse each other; after a restart of all, nothing is lost."""
    builds = Builds()
    async with trial(tmp_path, callers=3, adapt=builds.adapt) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            builds.kinds[ODD] = NEWER_WIRE
            odd = made.replicas.replicas[ODD]
            await odd.stop()
            await odd.start()
            await link_is(made, ODD, "refused: other_wire_version")
            await made.until_answered(OPERATIONS)
            await made.replicas.stop()
            builds.kinds = dict.fromkeys(range(REPLICAS), NEWER_WIRE)
            await made.replicas.start()
            await made.replicas.wait_ready()
            await made.until_answered(OPERATIONS)
        await agree(made)


@pytest.mark.exhaustive
async def test_an_older_build_refuses_a_log_that_it_does_not_know(tmp_path: Path) -> None:
    """The refusal names the level, from the log or a snapshot; a newer build starts there again."""
    builds = Builds(*[NEWER_LEVEL] * REPLICAS)
    says = f"level {FEATURE_LEVEL_MAX + 1}, and this build knows levels up to {FEATURE_LEVEL_MAX}"
    async with trial(tmp_path, callers=3, adapt=builds.adapt) as made:
        odd = made.replicas.replicas[ODD]
        async with under_load(made):
            # First from the log alone, then from a snapshot.
            for _ in range(2):
                await made.until_answered(OPERATIONS)
                await odd.stop()
                del builds.kinds[ODD]
                await odd.start()
                with pytest.raises(ClusterFailed, match=says):
                    await odd.wait_ready()
                await made.until_answered(OPERATIONS)
                await odd.stop()
                builds.kinds[ODD] = NEWER_LEVEL
                await odd.start()
                await made.replicas.wait_ready()
                last = await snapshot(made.admin)
                await restarts_from(made, ODD, last.generation)
        await agree(made)


async def restarts_from(made: ReplicasTrial, replica: int, generation: int) -> None:
    """Wait until the primary hears that a replica has adopted a generation."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if (await made.admin.status()).replicas[replica].generation >= generation:
                return
            await asyncio.sleep(0.1)


async def link_is(made: ReplicasTrial, replica: int, link: str) -> None:
    """Wait until the primary reports this state of its link to a replica."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if (await made.admin.status()).replicas[replica].link == link:
                return
            await asyncio.sleep(0.1)
