"""The limits that all replicas must have alike."""

from __future__ import annotations

from coordinator.peers.agreement import agreed_limits, configuration_digest

# Of the builds before: a replica with another one is refused by theirs.
OF_EARLIER_BUILDS = "077980ac5f0a39b79b76f826b7258049a710861cabb66c76f6a3634095cac5e6"


def test_replicas_of_earlier_builds_agree() -> None:
    """A new limit of one process is listed as such, so that builds run side by side."""
    assert configuration_digest(agreed_limits()).hex() == OF_EARLIER_BUILDS
