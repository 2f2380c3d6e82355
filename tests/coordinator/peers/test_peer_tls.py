"""Mutual TLS between replicas: in both directions the certificate names the replica."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.base.errors import ConfigError
from coordinator.peers.hello import HelloRefusal
from coordinator.peers.settings import PeerTls
from coordinator.peers.status import LinkState
from coordinator.peers.tls import certificate_name, expiry_that_refuses, load_credentials
from coordinator.snapshot.errors import PeerFileUnavailable
from testkit.links import Proxy
from tests.coordinator.peers.certificates import BEGIN, Authority
from tests.coordinator.peers.peer_trial import (
    PeerTrial,
    config,
    free_addresses,
    heartbeat,
    serving,
    until,
)
from viewstamp.certificates.pem_files import Expiry


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


async def test_an_expired_certificate_of_one_replica(authority: Authority) -> None:
    """Both sides name the reason, and both connect after the renewal, with no restart."""
    addresses = free_addresses()
    expired = (BEGIN, BEGIN + datetime.timedelta(days=1))
    names = [certificate_name(replica) for replica in range(2)]
    mine = config(addresses, 0, authority.issue(names[0]))
    theirs = config(addresses, 1, authority.issue(names[1], valid=expired))
    async with serving(mine) as trial, serving(theirs) as other:
        mine_refused, theirs_refused = await trial.until_refused(1), await other.until_refused(0)
        assert mine_refused.refusal is HelloRefusal.EXPIRED_CERTIFICATE
        assert theirs_refused.refusal is HelloRefusal.EXPIRED_CERTIFICATE
        assert mine_refused.why.startswith("its certificate, or that of its authority, is not")
        assert f"{names[1]}.pem of this replica is not valid at this time" in theirs_refused.why
        authority.issue(names[1])
        # What the watch of the process does from time to time.
        assert other.peers.certificates is not None
        other.peers.certificates.take(other.peers.certificates.look())
        await trial.until_connected(1)
        await other.until_connected(0)


async def test_a_link_outlives_its_certificates(authority: Authority) -> None:
    """A link that stands goes on past the end of both certificates. The cut of it is told like any
    other cut, so that nobody waits with an election; the next attempt is refused with the reason.
    """
    addresses = free_addresses()
    names = [certificate_name(replica) for replica in range(2)]
    both = [config(addresses, replica, authority.issue(names[replica])) for replica in range(2)]
    proxy = Proxy(addresses[1])
    (between,) = free_addresses(1).values()
    host, _, port = between.rpartition(":")
    mine = config({**addresses, 1: between}, 0, both[0].settings.tls)
    async with (
        await asyncio.start_server(proxy.passes_on, host, int(port)),
        serving(mine) as trial,
        serving(both[1]) as other,
    ):
        await trial.until_connected(1)
        for name in names:
            authority.issue(name, valid=(BEGIN, BEGIN + datetime.timedelta(days=1)))
        for each in (trial, other):
            assert each.peers.certificates is not None
            each.peers.certificates.take(each.peers.certificates.look())
        trial.peers.send(1, heartbeat(0, 1))
        await other.until(lambda: other.messages == [heartbeat(0, 1)])
        trial.states.clear()
        proxy.break_off()
        refused = await trial.until_refused(1)
        assert refused.refusal is HelloRefusal.EXPIRED_CERTIFICATE
        states = [each.state for each in trial.states if each.replica == 1]
        assert states[:2] == [LinkState.CONNECTING, LinkState.REFUSED]


def test_what_a_handshake_tells() -> None:
    """A failed connection is put down to a certificate only if that explains it."""
    good, ended = (Expiry("--flag", Path("file"), 0, ends_s, ends_s) for ends_s in (200, 100))
    told = "Tls handshake failed: CERTIFICATE_VERIFY_FAILED: certificate has expired: OK"
    now_us = 100 * 1_000_000
    assert "renew it there" in expiry_that_refuses(told, [good], now_us)
    assert "--flag file of this" in expiry_that_refuses("Socket closed", [good, ended], now_us)
    assert expiry_that_refuses("Socket closed", [good], now_us) == ""
    assert expiry_that_refuses("Connection refused", [ended], now_us) == ""
