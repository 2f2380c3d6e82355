"""Runs whose programs encrypt, are on files, have small limits, or are called rudely.

Method: runs of one or two virtual seconds, and what they have counted.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from unittest import mock

import pytest

from coordinator.peers import codec, listener
from coordinator.peers.messages import PeerMessage
from testkit.world.options import WorldOptions, flags
from testkit.world.run import WorldOutcome, WorldRun
from viewstamp.transports import WIRE

QUIET = WorldOptions(seconds=1, faults=(), clients=2)
ENCRYPTED = replace(QUIET, seconds=2, is_encrypted=True, transport=WIRE)
ON_FILES = replace(QUIET, is_on_files=True, seconds=2, flags=flags(snapshot_commands=10))
RUDE = replace(QUIET, rude_peers=1)
SEED = 3
TELL = (
    "from tests.testkit.world.test_world_surroundings import ENCRYPTED, SEED;"
    "from testkit.world.run import WorldRun; print(WorldRun(SEED, ENCRYPTED).run().digest)"
)


def ran(options: WorldOptions, seed: int = SEED) -> WorldOutcome:
    """Run a seed that has to be good."""
    outcome = WorldRun(seed, options).run()
    assert outcome.violations == []
    return outcome


def counted(outcome: WorldOutcome, start: str) -> Mapping[str, int]:
    """Return what a run has counted under names that begin alike."""
    return {name: n for name, n in outcome.branches.items() if name.startswith(start)}


@pytest.fixture(scope="module")
def encrypted() -> tuple[WorldOutcome, int]:
    """A run in which everybody encrypts, and how many ends of connections did."""
    wrap = ssl.SSLContext.wrap_bio
    with mock.patch.object(ssl.SSLContext, "wrap_bio", autospec=True, side_effect=wrap) as wrapped:
        return ran(ENCRYPTED), wrapped.call_count


def test_everybody_encrypts_and_certificates_are_renewed(
    encrypted: tuple[WorldOutcome, int],
) -> None:
    """Calls are answered through TLS, while files of certificates are replaced."""
    outcome, wrapped = encrypted
    assert outcome.answered > 0 and wrapped > 0
    assert counted(outcome, "certificate: ")


def test_ciphers_leave_no_trace_in_a_run(encrypted: tuple[WorldOutcome, int]) -> None:
    """Another process, with other keys and other randomness, comes to the same run."""
    elsewhere = subprocess.run(
        [sys.executable, "-c", TELL],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == encrypted[0].digest


def test_replicas_on_files_bear_what_happens_to_their_programs() -> None:
    """Snapshots are written by programs that die now and then, and wrong starts are refused."""
    outcome = ran(ON_FILES, seed=4)
    assert outcome.branches["writer of snapshots killed"] and outcome.branches["snapshot adopted"]
    assert len(counted(outcome, "wrong start: ")) > 2


def test_rude_peers_are_refused() -> None:
    """Each wrong hello is refused with its reason, and each wrong packet is dropped by its rule."""
    outcome = ran(RUDE)
    assert counted(outcome, "rude peer refused: ") and counted(outcome, "rude packet dropped: ")
    assert not counted(outcome, "rude peer refused: a welcome")


def test_a_replica_that_welcomes_the_rude_fails_the_run() -> None:
    """A guard that is taken out of the hello shows in a run with a rude peer."""
    with mock.patch.object(listener, "judge", lambda *_: None):
        outcome = WorldRun(SEED, RUDE).run()
    assert any("a rude peer got" in violation for violation in outcome.violations)


def readable(packet: bytes, cluster_id: bytes, replica: int) -> list[PeerMessage]:
    """Return the messages of a packet, and say nothing of what is none."""
    found = codec.decode_packet(packet, cluster_id, replica)
    return [each for each in found if not isinstance(each, codec.Undecodable)]


def test_a_replica_that_takes_what_it_cannot_read_fails_the_run() -> None:
    """A packet that is neither dropped nor counted shows in a run with a rude peer."""
    with mock.patch.object(listener, "decode_packet", readable):
        outcome = WorldRun(SEED, RUDE).run()
    assert any("a packet was not dropped" in violation for violation in outcome.violations)


def test_small_limits_keep_nobody_from_an_end() -> None:
    """With small limits every call comes to an end, and all replicas agree."""
    assert ran(replace(QUIET, is_small=True, wanderers=1, operators=1)).answered > 0
