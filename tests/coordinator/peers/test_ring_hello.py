"""Replicas of one cluster have journals of one kind, and rings of one size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.peers.agreement import agreed_limits, configuration_digest
from coordinator.peers.hello import HelloRefusal, judge
from coordinator.peers.peers import PeersConfig, hello_of
from coordinator.peers.settings import PeerSettings
from viewstamp.limits import MIB

SETTINGS = PeerSettings("h0:1", {1: "h1:1", 2: "h2:1"}, None)
CONFIG = PeersConfig(b"c" * 16, 0, 3, b"n" * 16, SETTINGS)
OTHER = PeersConfig(b"c" * 16, 1, 3, b"o" * 16, SETTINGS)


def with_ring(config: PeersConfig, ring_bytes: int) -> PeersConfig:
    """Return the configuration of a replica with such a ring; 0 for segments."""
    return replace(config, settings=replace(config.settings, journal_ring_bytes=ring_bytes))


def test_segments_say_what_they_always_said() -> None:
    """The digest of a replica with segments is that of the limits alone."""
    assert hello_of(CONFIG, agreed_limits()).configuration_digest == configuration_digest(
        agreed_limits()
    )


@pytest.mark.parametrize(
    ("own", "theirs", "is_refused"),
    [
        (0, 0, False),
        (64 * MIB, 64 * MIB, False),
        (0, 64 * MIB, True),
        (64 * MIB, 0, True),
        (64 * MIB, 32 * MIB, True),
    ],
)
def test_another_kind_of_journal_is_refused(own: int, theirs: int, is_refused: bool) -> None:
    """A primary with segments would not begin the snapshots that rings need, so no cluster has
    both; the refusal names the flags."""
    mine = hello_of(with_ring(CONFIG, own), agreed_limits())
    other = hello_of(with_ring(OTHER, theirs), agreed_limits()).to(0)
    refusal = judge(mine, other)
    assert (refusal is not None) == is_refused
    assert refusal is None or refusal.reason is HelloRefusal.OTHER_CONFIGURATION
    assert refusal is None or "--journal-ring-bytes" in refusal.detail
