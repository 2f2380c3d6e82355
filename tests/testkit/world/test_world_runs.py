"""Whole runs of the world: a seed is one run, and its judges see what is planted.

Method: runs of a few virtual seconds, in this process and in others with other hash seeds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from testkit.world.options import WorldOptions, draw
from testkit.world.replaced import replaced
from testkit.world.run import WorldOutcome, WorldRun
from testkit.world.world import World
from viewstamp.telemetry.sampling import Sampler, new_trace_id

QUIET = WorldOptions(seconds=2, faults=())
FAULTY = WorldOptions(seconds=4)
SEED = 5
DRAWN = replace(draw(SEED), seconds=2)
DIGEST = re.compile(r"digest ([0-9a-f]{32})")


def digest_elsewhere(hash_seed: int) -> str:
    """Return the digest of the faulty run in a process of its own."""
    command = ["-m", "testkit.world", f"--seed={SEED}", f"--seconds={DRAWN.seconds}"]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    found = DIGEST.search(done.stdout)
    assert found is not None, done.stdout
    return found[1]


def ran(seed: int, options: WorldOptions) -> WorldOutcome:
    """Run a seed."""
    return WorldRun(seed, options).run()


def test_a_seed_is_the_same_run_everywhere() -> None:
    """A run with faults has one digest: twice in this process, and under another hash seed."""
    digests = [ran(SEED, DRAWN).digest, ran(SEED, DRAWN).digest]
    digests.append(digest_elsewhere(1))
    assert len(set(digests)) == 1, digests
    assert ran(SEED + 1, DRAWN).digest not in digests


def traces_of(seed: int) -> tuple[list[bool], str]:
    """Return which calls a world traces, and the id of the next trace."""
    with replaced(World(seed)):
        sampler = Sampler(0.5)
        return [sampler.keeps() for _ in range(20)], new_trace_id()


def test_a_seed_decides_what_is_traced() -> None:
    """What is traced makes messages longer, so it belongs to a seed, and to nothing outside."""
    outside = [new_trace_id(), new_trace_id()]
    assert traces_of(SEED) == traces_of(SEED)
    assert traces_of(SEED) != traces_of(SEED + 1)
    assert new_trace_id() not in {*outside, traces_of(SEED)[1]}


# Their clients draw more patience than 0.2 s.
@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.long)])
def test_a_cluster_without_faults_answers(seed: int) -> None:
    """Three replicas with their services answer the real client library, which knows every
    outcome."""
    outcome = ran(seed, QUIET)
    assert outcome.violations == []
    assert outcome.answered > 100
    assert outcome.unknown == 0


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 5))]
)
def test_short_seeds_with_faults_pass(seed: int) -> None:
    """What clients are told under faults is linearizable, and all replicas agree afterwards."""
    outcome = ran(seed, FAULTY)
    assert outcome.violations == []
    assert outcome.answered > 0
