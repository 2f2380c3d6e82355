"""Mutual TLS between replicas: in both directions the certificate names the replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.base.errors import ConfigError
from coordinator.peers.hello import HelloRefusal
from coordinator.peers.settings import PeerTls
from coordinator.peers.status import LinkState
from coordinator.peers.tls import certificate_name, load_credentials
from coordinator.snapshot.errors import PeerFileUnavailable
from tests.coordinator.peers.certificates import Authority
from tests.coordinator.peers.peer_trial import (
    PeerTrial,
    config,
    free_addresses,
    heartbeat,
    serving,
    until,
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority of the cluster's replicas."""
    return Authority.create(tmp_path / "ours")


async def test_replicas_with_their_certificates(authority: Authority) -> None:
    """Each replica proves its identity, and both directions work."""
    addresses = free_addresses()
    one, two = (
        config(addresses, replica, authority.issue(certificate_name(replica)))
        for replica in range(2)
    )
    async with serving(one) as first, serving(two) as second:
        await first.until_connected(1)
        await second.until_connected(0)
        first.peers.send(1, heartbeat(0, 1))
        second.peers.send(0, heartbeat(1, 2))
        await second.until(lambda: second.messages == [heartbeat(0, 1)])
        await first.until(lambda: first.messages == [heartbeat(1, 2)])


async def test_a_certificate_of_another_replica(authority: Authority) -> None:
    """A replica with the certificate of replica 2 can neither speak as replica 1, nor be it."""
    addresses = free_addresses()
    mine = config(addresses, 0, authority.issue(certificate_name(0)))
    theirs = config(addresses, 1, authority.issue(certificate_name(2)))
    async with serving(mine) as trial, serving(theirs) as other:
        status = await other.until_refused(0)
        assert status.refusal is HelloRefusal.WRONG_CERTIFICATE
        assert "must name replica-1.viewstamp; this one has replica-2.viewstamp" in status.why
        assert trial.status(1).refused_hello == "wrong_certificate"
        await cannot_connect(trial)
        assert trial.messages == other.messages == []


async def test_a_certificate_without_a_name(authority: Authority) -> None:
    """A certificate of ours without a DNS name proves nothing: its subject is for people."""
    addresses = free_addresses()
    mine = config(addresses, 0, authority.issue(certificate_name(0)))
    nameless = authority.issue(certificate_name(1), is_named=False)
    async with serving(mine), serving(config(addresses, 1, nameless)) as other:
        status = await other.until_refused(0)
        assert status.refusal is HelloRefusal.WRONG_CERTIFICATE
        assert "this one has no name" in status.why


def foreign(authority: Authority, directory: Path) -> PeerTls:
    """Return files of another authority, which trusts itself."""
    return Authority.create(directory / "theirs").issue(certificate_name(1))


def foreign_that_trusts_us(authority: Authority, directory: Path) -> PeerTls:
    """Return files of another authority, with ours as the trusted one."""
    return Authority.create(directory / "theirs").issue(certificate_name(1), trusted=authority)


def none_at_all(authority: Authority, directory: Path) -> None:
    """Return no files: a replica without TLS."""


@pytest.mark.parametrize("files", [foreign, foreign_that_trusts_us, none_at_all])
async def test_replicas_of_another_authority(
    authority: Authority,
    tmp_path: Path,
    files: Callable[[Authority, Path], PeerTls | None],
) -> None:
    """A replica that cannot prove its identity fails the handshake in both directions."""
    addresses = free_addresses()
    mine = config(addresses, 0, authority.issue(certificate_name(0)))
    async with serving(mine) as trial:
        async with serving(config(addresses, 1, files(authority, tmp_path))) as other:
            await cannot_connect(trial)
            await cannot_connect(other, 0)
            with pytest.raises(PeerFileUnavailable):
                await other.peers.fetcher.manifest(0, 1)
        assert trial.peers.refused_hellos() == {}
        assert not trial.status(1).is_heard


async def cannot_connect(trial: PeerTrial, replica: int = 1) -> None:
    """Wait until several attempts to reach a peer have failed."""
    link = trial.peers.links[replica]
    await until(lambda: link.failures >= 3)
    assert trial.status(replica).state is LinkState.CONNECTING
    assert "UNAVAILABLE" in trial.status(replica).why


def test_files_that_cannot_be_used(authority: Authority) -> None:
    """A start reports missing files, and a key that does not belong to the certificate."""
    files = authority.issue(certificate_name(0))
    other = authority.issue(certificate_name(1))
    for wrong in (
        replace(files, authority=files.authority.with_name("none.pem")),
        replace(files, certificate=files.certificate.with_name("none.pem")),
        replace(files, key=other.key),
    ):
        with pytest.raises(ConfigError, match="--peer-tls-certificate"):
            load_credentials(wrong)
