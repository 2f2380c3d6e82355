"""A session keeps its broker registered, and never leads what another broker may lead.

The brokers below talk to the real state machine, whose answers may be lost.
"""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.message import Message

from tests.services.streams.streams_workbench import by
from tests.viewstamp.client.broker_cluster import BrokersCluster, change_of, until
from viewstamp import limits
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.client.broker_replicas import TopicPartition
from viewstamp.client.broker_session import BrokerSession, LeadsChange
from viewstamp.client.errors import ClientClosed, TimedOut
from viewstamp.errors import Refusal

TIMEOUT_S = limits.BROKER_TIMEOUT_US / 1e6


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers show life every few milliseconds."""
    monkeypatch.setattr(limits, "BROKER_HEARTBEAT_MS", 2)


@pytest.fixture
def cluster() -> BrokersCluster:
    """A cluster without brokers."""
    return BrokersCluster()


def led(
    cluster: BrokersCluster, topic: int, *numbers: int, at: int = 0
) -> dict[TopicPartition, int]:
    """Return partitions of a topic of orders with a leader epoch, by default the last revision."""
    stream = cluster.work.bench.state.stream_ids.rows["orders"]
    return {TopicPartition(stream, topic, each): at or cluster.revision for each in numbers}


def cut_off(request: Message) -> None:
    """Lose every answer."""
    raise TimedOut("no answer")


def heard(request: Message) -> None:
    """Lose no answer."""


def create(cluster: BrokersCluster, name: str, partitions: int, replication_factor: int = 1) -> int:
    """Create a topic of orders whose partitions are placed, and return its id."""
    topic = cluster.work.create(name, partitions, replication_factor)
    cluster.show()
    return topic


async def test_a_broker_leads_what_it_is_given(cluster: BrokersCluster) -> None:
    """New partitions begin, partitions that are gone end, each with the epoch of the cluster."""
    async with cluster.session("one") as session:
        topic = create(cluster, "wide", 2)
        assert await change_of(session) == LeadsChange(led(cluster, topic, 0, 1))
        placed = cluster.work.placements("wide")
        assert {each.leader_epoch for each in placed.values()} == set(session.leads.values())
        cluster.work.bench.command("DeleteTopic", delete_topic("wide"))
        cluster.show()
        assert await change_of(session) == LeadsChange(ended=frozenset(led(cluster, topic, 0, 1)))
        assert session.leads == {}


def delete_topic(topic: str) -> Message:
    """Return the request to delete a topic of orders."""
    return streams_api.DeleteTopicRequest(stream=by("orders"), topic=by(topic))


async def test_what_was_placed_before_is_led_at_once(cluster: BrokersCluster) -> None:
    """A session that begins knows what it leads, and the cluster believes its stamp."""
    cluster.work.register("one")
    topic = create(cluster, "wide", 3)
    async with cluster.session("one") as session:
        assert session.leads == led(cluster, topic, 0, 1, 2)
        assert session.leader_epoch(next(iter(session.leads))) == session.broker_epoch
        assert session.stamp.seen_revision == cluster.revision
        cluster.work.bench.command("ReportPartitionEnds", ends(session, topic))


def ends(session: BrokerSession, topic: int) -> Message:
    """Return a report of a partition by a broker."""
    told = [PartitionOffset(partition=0, offset=9)]
    return streams_api.ReportPartitionEndsRequest(
        stream=by("orders"), topic=by(topic), end_offsets=told, broker=session.stamp
    )


async def test_leaders_move_with_brokers(cluster: BrokersCluster) -> None:
    """Who resigns, is drained or comes back hands over; no two lead one partition."""
    async with cluster.session("one") as one:
        async with cluster.session("two") as two:
            topic = create(cluster, "wide", 2, replication_factor=2)
            first, second = await change_of(one), await change_of(two)
            assert {**first.began, **second.began} == led(cluster, topic, 0, 1)
            assert not first.began.keys() & second.began.keys()
            cluster.work.drain(two.broker_id)
            cluster.show()
            assert await change_of(two) == LeadsChange(ended=frozenset(second.began))
            assert await change_of(one) == LeadsChange(led(cluster, topic, 0, 1))
        change = await change_of(one)
        assert change == LeadsChange(led(cluster, topic, 0, 1))
        assert cluster.work.get(two.broker_id).fenced
        held = one.replicas[next(iter(change.began))]
        assert (held.leader, held.leader_epoch) == (one.broker_id, cluster.revision)


async def test_a_quiet_broker_sends_no_commands(cluster: BrokersCluster) -> None:
    """Once it is registered, only reads show that the broker is alive."""
    client = cluster.client()
    async with cluster.session("one", client):
        known = len(client.sent)
        await until(lambda: len(client.sent) > known + 20)
        assert set(client.sent[known:]) == {"KeepAliveBroker"}


async def test_a_fenced_broker_leads_nothing_and_registers_again(cluster: BrokersCluster) -> None:
    """Who was fenced ends all, begins another epoch, and leads again under new leader epochs."""
    async with cluster.session("one") as session:
        topic = create(cluster, "wide", 2)
        await change_of(session)
        before = session.broker_epoch
        cluster.fence(session)
        assert await change_of(session) == LeadsChange(ended=frozenset(led(cluster, topic, 0, 1)))
        change = await change_of(session)
        assert change.began == led(cluster, topic, 0, 1, at=session.broker_epoch)
        assert session.broker_epoch > before


async def test_an_unheard_broker_stops_by_itself(cluster: BrokersCluster) -> None:
    """Without an answer for the timeout the broker leads nothing; answers bring it back."""
    client = cluster.client()
    async with cluster.session("one", client) as session:
        topic = create(cluster, "wide", 1)
        began = (await change_of(session)).began
        assert began == led(cluster, topic, 0)
        client.failure = cut_off
        cluster.now_s += TIMEOUT_S - 1
        assert session.leads == began
        cluster.now_s += 1
        assert session.leads == {}
        assert session.leader_epoch(next(iter(began))) == 0
        assert await change_of(session) == LeadsChange(ended=frozenset(began))
        client.failure = heard
        assert await change_of(session) == LeadsChange(began)


async def test_a_broker_that_does_not_follow_leads_nothing_of_its_new_epoch(
    cluster: BrokersCluster,
) -> None:
    """Before it has seen its own registration, a broker does not lead what it led before."""
    client = cluster.client()
    async with cluster.session("one", client) as session:
        topic = create(cluster, "wide", 1)
        began = (await change_of(session)).began
        client.is_watching = False
        before = session.broker_epoch
        cluster.fence(session)
        await until(lambda: session.broker_epoch > before)
        sent = len(client.sent)
        await until(lambda: len(client.sent) > sent + 10)
        assert session.leads == {}
        assert session.stamp.seen_revision < session.broker_epoch
        assert await change_of(session) == LeadsChange(ended=frozenset(began))
        client.is_watching = True
        cluster.show()
        assert (await change_of(session)).began == led(cluster, topic, 0)


async def test_a_registration_that_may_have_taken_effect_is_made_again(
    cluster: BrokersCluster,
) -> None:
    """A lost answer to a registration does not look like one of another process."""
    client = cluster.client()
    async with cluster.session("one", client) as session:
        create(cluster, "wide", 1)
        await change_of(session)
        lost: list[int] = []

        def lose_once(request: Message) -> None:
            if isinstance(request, api.RegisterBrokerRequest) and not lost:
                lost.append(cluster.work.register("one"))
                raise Refusal(Reason.REASON_SESSION_EVICTED, "its outcome is unknown")

        client.failure = lose_once
        cluster.fence(session)
        assert (await change_of(session)).ended
        assert (await change_of(session)).began
        assert lost == [session.broker_id]
        assert session.broker_epoch == cluster.revision


async def test_another_process_with_the_name_ends_the_session(cluster: BrokersCluster) -> None:
    """The broker that was replaced says so, and does not take the name back."""
    client = cluster.client()
    async with cluster.session("one", client) as session:
        create(cluster, "wide", 1)
        began = (await change_of(session)).began
        cluster.work.register("one")
        cluster.show()
        assert await change_of(session) == LeadsChange(ended=frozenset(began))
        with pytest.raises(Refusal) as caught:
            await change_of(session)
        assert caught.value.name == "FENCED_BROKER_EPOCH"
        assert client.sent.count("RegisterBroker") == 1


async def test_a_broker_that_is_fenced_again_and_again_pauses(
    cluster: BrokersCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that can register and is fenced in the next moment does not fill the log."""
    monkeypatch.setattr("viewstamp.client.broker_session.REGISTRATION_PAUSE_S", 3_600)
    client = cluster.client()
    async with cluster.session("one", client) as session:

        def refuse(request: Message) -> None:
            if isinstance(request, api.KeepAliveBrokerRequest):
                epoch = session.broker_epoch
                raise Refusal(Reason.REASON_FENCED_BROKER_EPOCH, "over", broker_epoch=epoch)

        client.failure = refuse
        await until(lambda: client.sent.count("RegisterBroker") == 2)
        sent = len(client.sent)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(client.sent) == sent


@pytest.mark.parametrize(
    "failure",
    [
        Refusal(Reason.REASON_BROKER_NOT_FOUND, "unregistered"),
        Refusal(Reason.REASON_PERMISSION_DENIED, "not any more"),
        ClientClosed("closed"),
        ZeroDivisionError("a defect"),
    ],
    ids=["unregistered", "denied", "closed", "defect"],
)
async def test_what_cannot_go_on_ends_the_session(
    cluster: BrokersCluster, failure: Exception
) -> None:
    """The program hears that it leads nothing, and then why; no further sign of life is sent."""
    client = cluster.client()
    async with cluster.session("one", client) as session:
        create(cluster, "wide", 1)
        began = (await change_of(session)).began

        def fail(request: Message) -> None:
            raise failure

        client.failure = fail
        assert await change_of(session) == LeadsChange(ended=frozenset(began))
        client.failure = heard
        with pytest.raises(type(failure)):
            await change_of(session)
        sent = len(client.sent)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (len(client.sent), session.leads) == (sent, {})


@pytest.mark.parametrize(
    "failure",
    [Refusal(Reason.REASON_PERMISSION_DENIED, "denied"), ZeroDivisionError("a defect")],
    ids=["denied", "defect"],
)
async def test_a_broker_that_does_not_follow_any_more_shows_no_life(
    cluster: BrokersCluster, failure: Exception
) -> None:
    """A session whose watch has failed ends, so that others lead what it cannot know of."""
    client = cluster.client()
    async with cluster.session("one", client) as session:
        topic = create(cluster, "wide", 1)
        await change_of(session)
        client.watch_failure = failure
        cluster.work.drain(session.broker_id)
        cluster.show()
        assert await change_of(session) == LeadsChange(ended=frozenset(led(cluster, topic, 0)))
        with pytest.raises(type(failure)):
            await change_of(session)
        sent = len(client.sent)
        await asyncio.sleep(0.02)
        assert len(client.sent) == sent


async def test_a_refused_registration_is_raised(cluster: BrokersCluster) -> None:
    """Entering tells why a broker cannot register."""
    client = cluster.client()

    def refuse(request: Message) -> None:
        raise Refusal(Reason.REASON_INVALID_BROKER, "no endpoint")

    client.failure = refuse
    with pytest.raises(Refusal, match="no endpoint"):
        async with cluster.session("one", client):
            pass


async def test_who_is_in_sync_is_seen_before_the_leader_goes_on(cluster: BrokersCluster) -> None:
    """After the answer the leader has the new set, its epoch, and a stamp that is believed."""
    async with cluster.session("one") as one, cluster.session("two") as two:
        topic = create(cluster, "wide", 1, replication_factor=2)
        cluster.work.place("wide", {0: [one.broker_id, two.broker_id]})
        cluster.show()
        await one.come_to(cluster.revision)
        (partition,) = one.leads
        await one.update_in_sync(partition, (one.broker_id,))
        assert one.replicas[partition].in_sync == (one.broker_id,)
        assert one.leader_epoch(partition) == cluster.revision
        cluster.work.bench.command("ReportPartitionEnds", ends(one, topic))
        with pytest.raises(Refusal) as caught:
            await two.update_in_sync(partition, (two.broker_id,))
        assert caught.value.name == "NOT_LEADER"


async def test_a_replica_that_lost_its_storage_is_not_in_sync_until_the_leader_says_so(
    cluster: BrokersCluster,
) -> None:
    """The leader sees whom it has to add again, although the cluster still has the old set."""
    async with cluster.session("one") as one:
        two = cluster.work.register("two")
        create(cluster, "wide", 1, replication_factor=2)
        cluster.work.place("wide", {0: [one.broker_id, two]})
        cluster.work.register("two", storage_id="new disk")
        cluster.show()
        await one.come_to(cluster.revision)
        (partition,) = one.leads
        assert one.replicas[partition].in_sync == (one.broker_id,)
        await one.update_in_sync(partition, (one.broker_id, two))
        assert one.replicas[partition].in_sync == (one.broker_id, two)


async def test_the_end_resigns(cluster: BrokersCluster) -> None:
    """Behind the block the broker is fenced, leads nothing, and the iteration has ended."""
    async with cluster.session("one") as session:
        create(cluster, "wide", 1)
        began = (await change_of(session)).began
    assert cluster.work.get(session.broker_id).fenced
    assert session.leads == {}
    assert await change_of(session) == LeadsChange(ended=frozenset(began))
    with pytest.raises(ClientClosed):
        await change_of(session)
