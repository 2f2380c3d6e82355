"""Links, hellos and introductions as members come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from coordinator.base.roster import Roster
from coordinator.mux.catalog_types import ClusterMembers, EpochMember
from coordinator.peers import introduction
from coordinator.peers.hello import HelloRefusal
from coordinator.peers.introduction import Introduction, Newcomer, introduced, introduction_of
from coordinator.peers.link import dial
from coordinator.peers.peers import GUESTS_MAX, PeerEvents, Peers, PeersConfig, hello_of
from coordinator.peers.routing import Receiver
from coordinator.peers.settings import PeerSettings, PeerTls
from coordinator.peers.status import LinkState
from coordinator.peers.tls import certificate_name, load_credentials
from coordinator.stages.entities import begin_epoch_message
from coordinator.vsr import view_in
from tests.coordinator.peers.certificates import Authority
from tests.coordinator.peers.peer_trial import (
    CLUSTER,
    WAIT_S,
    PeerTrial,
    config,
    free_addresses,
    heartbeat,
    serving,
)
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.grpc_transport import open_channel

NEW: Final = 7
INTRODUCE: Final = "/viewstamp.api.replication.v1.ReplicationService/Introduce"


def with_roster(addresses: Mapping[int, str], replica: int, roster: Roster) -> PeersConfig:
    """Return the configuration of one of the two that founded the cluster."""
    known = {each: addresses[each] for each in (0, 1)}
    return replace(config(known, replica), replica_count=2, roster=roster)


def newcomer(addresses: Mapping[int, str], roster: Roster) -> PeersConfig:
    """Return the configuration of the added replica, whose flags name one of the others."""
    settings = PeerSettings(addresses[NEW], {0: addresses[0]}, None)
    return PeersConfig(CLUSTER, NEW, 2, b"n" * 16, settings, roster)


def three_addresses() -> dict[int, str]:
    """Return addresses of two founders and of the newcomer."""
    first, second, third = free_addresses().values()
    return {0: first, 1: second, NEW: third}


@contextlib.asynccontextmanager
async def founders(
    addresses: Mapping[int, str],
) -> AsyncIterator[tuple[list[PeerTrial], list[Roster]]]:
    """Run two replicas of the first epoch."""
    rosters = [Roster.founding(replica, 2) for replica in (0, 1)]
    async with contextlib.AsyncExitStack() as stack:
        trials = [
            await stack.enter_async_context(serving(with_roster(addresses, replica, roster)))
            for replica, roster in enumerate(rosters)
        ]
        yield trials, rosters


async def test_a_new_member_is_linked_both_ways_and_a_removed_one_let_go() -> None:
    """Messages reach the newcomer from the epoch on in which it is a member. Who was removed can
    still be told once, and no more when the epoch after that begins."""
    addresses = three_addresses()
    joined = Roster(NEW, (0, 1), (NEW,), epoch=1)
    async with (
        founders(addresses) as (trials, rosters),
        serving(newcomer(addresses, joined)) as added,
    ):
        added.peers.learn_addresses(addresses)
        for trial, roster in zip(trials, rosters, strict=True):
            trial.peers.learn_addresses(addresses)
            roster.enter((0, 1), (NEW,), 1)
            await trial.until_connected(NEW)
        await added.until_connected(0, 1)
        trials[0].peers.send(NEW, heartbeat(0, 11))
        await added.until(lambda: heartbeat(0, 11) in added.messages)
        added.peers.send(1, heartbeat(NEW, 12))
        await trials[1].until(lambda: heartbeat(NEW, 12) in trials[1].messages)

        rosters[0].enter((0, 1), (), 2)
        assert set(trials[0].peers.links) == {1, NEW}
        assert [status.replica for status in trials[0].peers.status()] == [1]
        trials[0].peers.send(NEW, heartbeat(0, 13))
        await added.until(lambda: heartbeat(0, 13) in added.messages)
        rosters[0].enter((0,), (1,), 3)
        assert set(trials[0].peers.links) == {1}
        trials[0].peers.send(NEW, heartbeat(0, 14))  # lost, and no defect
        assert set(trials[0].peers.listener.heard) == {1}


async def test_a_removed_replica_that_comes_back_is_told_so() -> None:
    """Its old directory says an earlier epoch. It gets a reason, and can disturb nobody."""
    addresses = three_addresses()
    async with founders(addresses) as (trials, rosters):
        rosters[0].enter((0, 1), (), 2)
        rosters[0].enter((0, 1), (), 3)
        stray = Roster(NEW, (0, 1, NEW), epoch=1)
        async with serving(newcomer(addresses, stray)) as removed:
            status = await removed.until_refused(0)
            assert status.refusal is HelloRefusal.REMOVED_REPLICA
            assert "no member of epoch 3" in status.why
        assert trials[0].peers.refused_hellos() == {"removed_replica": 1}


async def test_who_was_away_is_told_by_members_that_it_never_heard_of() -> None:
    """Everybody that it knew may have been replaced. Whoever is of a later epoch is a guest: heard,
    answered where its hello says that it listens, and asked for files; until the next epoch."""
    addresses = three_addresses()
    async with founders(addresses) as (trials, rosters):
        joined = Roster(NEW, (0, NEW), epoch=2)
        async with serving(newcomer(addresses, joined)) as added:
            await added.until_connected(0)
            added.peers.send(0, heartbeat(NEW, 21))
            await trials[0].until(lambda: heartbeat(NEW, 21) in trials[0].messages)
            trials[0].peers.send(NEW, heartbeat(0, 22))
            await added.until(lambda: heartbeat(0, 22) in added.messages)
            assert trials[0].peers.with_address == (1, NEW)
            assert [status.replica for status in trials[0].peers.status()] == [1]
            rosters[0].enter((0, NEW), (), 2)
            assert set(trials[0].peers.links) == {1, NEW}


async def test_so_many_guests_are_heard_and_none_of_this_epoch() -> None:
    """Strangers that claim a later epoch take a bounded number of links."""
    addresses = three_addresses()
    async with founders(addresses) as (trials, _):
        peers = trials[0].peers
        ahead = replace(
            hello_of(with_roster(addresses, 0, Roster.founding(0, 2)), {}),
            epoch=1,
            peer_address="nowhere:1",
        )
        assert not peers.has_place(replace(ahead, replica_id=50, epoch=0))
        taken = [peers.has_place(replace(ahead, replica_id=100 + n)) for n in range(GUESTS_MAX + 2)]
        assert taken == [True] * GUESTS_MAX + [False] * 2
        assert peers.has_place(replace(ahead, replica_id=100)), "it was heard before"


async def test_a_guest_without_a_place_hears_why() -> None:
    """It tries again, as at any refusal; a place is free with the next epoch here."""
    addresses = three_addresses()
    async with founders(addresses) as (trials, rosters):
        ahead = replace(hello_of(with_roster(addresses, 0, Roster.founding(0, 2)), {}), epoch=1)
        assert all(
            trials[0].peers.has_place(replace(ahead, replica_id=100 + n)) for n in range(GUESTS_MAX)
        )
        joined = Roster(NEW, (0, 1), (NEW,), epoch=2)
        async with serving(newcomer(addresses, joined)) as added:
            status = await added.until_refused(0)
            assert status.refusal is HelloRefusal.UNKNOWN_REPLICA
            trials[0].peers.learn_addresses(addresses)
            rosters[0].enter((0, 1), (NEW,), 2)
            await added.until_connected(0)


async def test_founding_counts_part_nobody_once_members_have_changed() -> None:
    """A founder whose flags name other standbys than the newcomer's is of the same cluster."""
    addresses = three_addresses()
    async with founders(addresses) as (trials, rosters):
        rosters[0].enter((0, 1), (NEW,), 1)
        joined = Roster(NEW, (0, 1), (NEW,), epoch=1)
        other = replace(newcomer(addresses, joined), replica_count=1)
        async with serving(other) as added:
            await added.until_connected(0)
        assert trials[0].peers.refused_hellos() == {}


async def test_a_member_without_a_known_address_tells_it_by_itself() -> None:
    """Until it says hello, or the log names the address, its link says what is missing."""
    addresses = three_addresses()
    async with founders(addresses) as (trials, rosters):
        rosters[0].enter((0, 1), (NEW,), 1)
        status = trials[0].status(NEW)
        assert (status.state, trials[0].peers.with_address) == (LinkState.CONNECTING, (1,))
        await trials[0].until(lambda: "told its address" in trials[0].status(NEW).why)
        joined = Roster(NEW, (0, 1), (NEW,), epoch=1)
        async with serving(newcomer(addresses, joined)):
            await trials[0].until_connected(NEW)
        assert trials[0].peers.with_address == (1, NEW)
        rosters[0].enter((0, 1), (), 2)
        rosters[0].enter((0, 1), (), 3)
        assert trials[0].peers.addresses == {1: addresses[1]}


def test_flags_say_where_a_replica_is_whatever_the_log_says() -> None:
    """An operator moves a replica by flags; the log learns of it with the next change."""
    addresses = three_addresses()
    roster = Roster(0, (0, 1), (NEW,), epoch=1)
    events = PeerEvents(dict.fromkeys(Receiver, print), print, print)
    peers = Peers(with_roster(addresses, 0, roster), events)
    peers.learn_addresses({1: "elsewhere:1", NEW: "new:1", 0: "self:1"})
    assert peers.addresses == {1: addresses[1], NEW: "new:1"}


def test_the_log_says_who_is_at_an_address_that_flags_only_guess() -> None:
    """Pods of one template are given the addresses of all pods, whose ids are others once one of
    them was replaced. What the log says goes before that, and who left is forgotten."""
    addresses = {0: "pod-0:1", 1: "pod-1:1", 2: "pod-2:1"}
    settings = PeerSettings(addresses[0], {1: "pod-1:1", 2: "pod-2:1"}, None, asks_id=True)
    roster = Roster(0, (0, 1, 2), epoch=1)
    events = PeerEvents(dict.fromkeys(Receiver, print), print, print)
    peers = Peers(PeersConfig(CLUSTER, 0, 1, b"n" * 16, settings, roster), events)
    assert peers.addresses == {1: "pod-1:1", 2: "pod-2:1"}

    peers.learn_addresses({1: "pod-1:1", 2: "pod-7:1"})
    roster.enter((0, 2), (), epoch=2)
    roster.enter((0, 2), (), epoch=3)

    assert peers.addresses == {2: "pod-7:1"}


MEMBERS: Final = ClusterMembers(
    44,
    view_in(3, 1),
    (EpochMember(0, "zero:1"), EpochMember(4, "four:1", b"d" * 16)),
    (EpochMember(NEW, "new:1"),),
    8,
)
TOLD: Final = Introduction(CLUSTER, 2, 1, MEMBERS, b"k" * 16)


@pytest.mark.parametrize(
    ("first_view", "expected"), [(view_in(3, 1), (9, 9)), (view_in(0, 5), (2, 1))]
)
def test_founding_counts_of_the_first_epoch_are_those_of_its_members(
    first_view: int, expected: tuple[int, int]
) -> None:
    """A replica that joined may not know how many standbys founded the cluster, and must not tell
    a standby of the first epoch that there were none."""
    named = begin_epoch_message(replace(MEMBERS, first_view=first_view))
    told = introduction_of(
        pb.IntroduceResponse(cluster_id=CLUSTER, replica_count=9, standby_count=9, members=named)
    )
    assert (told.replica_count, told.standby_count) == expected


@contextlib.asynccontextmanager
async def seed(told: Introduction | None, tls: PeerTls | None = None) -> AsyncIterator[str]:
    """Run a replica that introduces the newcomer with these words; None: it is not ready."""
    addresses = three_addresses()
    roster = Roster(0, (0, 4), (NEW,), epoch=3)
    configuration = with_roster(addresses, 0, roster)
    configuration = replace(configuration, settings=replace(configuration.settings, tls=tls))
    async with serving(configuration, introduction=lambda: told):
        yield addresses[0]


async def test_a_newcomer_is_told_of_its_cluster_by_whoever_knows_it() -> None:
    """Seeds that are away or do not take part yet are passed over."""
    async with seed(None) as unready, seed(TOLD) as ready, asyncio.timeout(WAIT_S):
        seeds = {1: free_addresses()[0], 2: unready, 0: ready}
        assert await introduced(Newcomer(NEW), seeds, lambda: None, lambda: 0) == TOLD


@pytest.mark.parametrize(
    ("told", "payload", "code", "says"),
    [
        (TOLD, b"\x08\x09", grpc.StatusCode.PERMISSION_DENIED, "replica 9 is no member of epoch 3"),
        (None, b"\x08\x07", grpc.StatusCode.UNAVAILABLE, "does not take part itself yet"),
        (TOLD, b"\xff", grpc.StatusCode.INVALID_ARGUMENT, "does not decode"),
    ],
)
async def test_who_is_told_nothing_hears_why(
    told: Introduction | None, payload: bytes, code: grpc.StatusCode, says: str
) -> None:
    """A replica that was not added, a seed that is not ready, and what is no request."""
    async with seed(told) as address:
        channel = open_channel(address, ())
        with pytest.raises(grpc.aio.AioRpcError, match=says) as refused:
            call: Any = channel.unary_unary(INTRODUCE)
            await call(payload, timeout=WAIT_S)
        assert refused.value.code() is code
        await channel.close()


async def test_with_certificates_a_newcomer_proves_who_it_is(tmp_path: Path) -> None:
    """The seed proves its id, and tells nothing to a replica with the certificate of another."""
    authority = Authority.create(tmp_path / "ours")
    own = authority.issue(certificate_name(0))
    async with seed(TOLD, own) as address, asyncio.timeout(WAIT_S):
        newcomers = load_credentials(authority.issue(certificate_name(NEW)))
        assert await introduced(Newcomer(NEW), {0: address}, lambda: newcomers, lambda: 0) == TOLD
        others = load_credentials(authority.issue(certificate_name(4)))
        channel = dial(address, 0, others)
        call: Any = channel.unary_unary(INTRODUCE)
        with pytest.raises(grpc.aio.AioRpcError, match="must name replica-7") as refused:
            await call(b"\x08\x07", timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await channel.close()


async def test_a_newcomer_is_known_by_the_address_with_which_it_was_added(tmp_path: Path) -> None:
    """It need not know its id. Its certificate must name the id that it is told, and an address
    with which nobody was added is told nothing."""
    authority = Authority.create(tmp_path / "ours")
    own = authority.issue(certificate_name(0))
    asks = Newcomer(0, "new:1")
    async with seed(TOLD, own) as address, asyncio.timeout(WAIT_S):
        proofs = load_credentials(authority.issue(certificate_name(NEW)))
        told = await introduced(asks, {0: address}, lambda: proofs, lambda: 0)
        assert (told, asks.among(told.members)) == (TOLD, NEW)
        for certificate, asked, says in (
            (certificate_name(4), "new:1", "must name replica-7"),
            (certificate_name(NEW), "strange:1", "replica at strange:1 is no member of epoch 3"),
        ):
            channel = dial(address, 0, load_credentials(authority.issue(certificate)))
            call: Any = channel.unary_unary(INTRODUCE)
            with pytest.raises(grpc.aio.AioRpcError, match=says) as refused:
                await call(pb.IntroduceRequest(address=asked).SerializeToString(), timeout=WAIT_S)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            await channel.close()


async def test_a_newcomer_does_not_take_the_id_of_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A build that knows no addresses answers as to replica 0: who is not named asks on."""
    monkeypatch.setattr(introduction, "INTRODUCTION_RETRY_MS", 1)
    rounds: list[int] = []

    async def answered(*_: Any) -> bytes:
        rounds.append(len(rounds))
        if len(rounds) == 3:
            raise LookedOften
        return older.SerializeToString()

    older = pb.IntroduceResponse(cluster_id=CLUSTER, members=begin_epoch_message(MEMBERS))
    monkeypatch.setattr(introduction, "answer_of", answered)
    with pytest.raises(LookedOften):
        await introduced(Newcomer(0, "other:1"), {0: "127.0.0.1:1"}, lambda: None, lambda: 0)


class LookedOften(Exception):  # noqa: N818  It ends a loop.
    """The newcomer has looked as often as wanted."""


async def test_a_newcomer_looks_at_its_certificates_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were wrong at its start may have been replaced: each round reads them."""
    monkeypatch.setattr(introduction, "INTRODUCTION_RETRY_MS", 1)
    looks: list[int] = []

    def certificates() -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            raise LookedOften

    with pytest.raises(LookedOften):
        await introduced(Newcomer(NEW), {0: "127.0.0.1:1"}, certificates, lambda: 0)
