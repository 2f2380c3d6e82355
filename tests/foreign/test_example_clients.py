"""The examples in Go, TypeScript and Java do what their page promises, over deaths of the primary.

Method: each example is built as its page says, and runs against three real replicas, with and
without TLS. Our own client then says what the cluster has, and the example must have told the same.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

import viewstamp
from tests.deploy.certificates import self_signed
from tests.foreign.example_programs import EXAMPLES, BuiltExample, ExampleLanguage, ExampleProcess
from viewstamp.api.streams.v1.streams_pb2 import Topic
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client
from viewstamp.client.watching import decoded
from viewstamp.cluster import LocalReplicas
from viewstamp.cluster.local import COORDINATOR

pytestmark = [pytest.mark.foreign, pytest.mark.asyncio(loop_scope="module")]

REPLICAS: Final = 3
TOPICS: Final = tuple(f"topic-{number}" for number in range(5))
LEDGER: Final = "ledger"
FAILOVERS: Final = 3
COMMANDS_PER_FAILOVER: Final = 300
# So many of them have an answer when the primary dies.
ANSWERED_BEFORE: Final = 60
CALL_TIMEOUT_S: Final = 60.0
PASSWORD: Final = "correct horse battery staple"
KINDS: Final = ("", "created", "updated", "deleted")


@dataclass(frozen=True, slots=True)
class ExampleCluster:
    """Three replicas, and what a client of them has to know."""

    replicas: LocalReplicas
    tls_ca: Path | None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        """Give a client of ours."""
        password = self.replicas.root_password_path.read_text().strip()
        async with await viewstamp.connect(
            self.replicas.addresses,
            username="root",
            password=password,
            tls_ca=self.tls_ca,
            timeout_s=CALL_TIMEOUT_S,
        ) as client:
            yield client

    def flags(self, addresses: Sequence[str], user: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the flags of an example that is told so much."""
        file = ("--password-file", str(self.replicas.root_password_path))
        encryption = () if self.tls_ca is None else ("--tls-ca", str(self.tls_ca))
        return ("--addresses", ",".join(addresses), *encryption, *(user or file))

    async def addresses(self, client: Client) -> list[str]:
        """Return where all replicas are, the primary first."""
        primary, known = (await client.status()).primary, self.replicas.addresses
        return known[primary:] + known[:primary]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[False, True], ids=["plain", "TLS"]
)
async def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ExampleCluster]:
    """Run three replicas."""
    directory = tmp_path_factory.mktemp("replicas")
    authority, key, chain = (directory / name for name in ("ca.crt", "tls.key", "tls.crt"))
    private, certificate = self_signed(authority)
    key.write_bytes(private)
    chain.write_bytes(certificate)
    flags = ("--tls-certificate", str(chain), "--tls-key", str(key)) if request.param else ()
    data = directory / "data"
    async with LocalReplicas(data, REPLICAS, "127.0.0.1:0", coordinator_arguments=flags) as made:
        yield ExampleCluster(made, authority if request.param else None)


@pytest.fixture(scope="session", params=EXAMPLES, ids=lambda language: language.name)
def example(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BuiltExample]:
    """Build an example once."""
    language: ExampleLanguage = request.param
    yield language.built_in(tmp_path_factory.mktemp("example"))


def described(topic: Topic) -> dict[str, Any]:
    """Return a topic as the examples print it."""
    return {"topic": topic.name, "id": topic.id, "partitions_count": topic.partitions_count}


async def listed(client: Client, stream: str) -> list[dict[str, Any]]:
    """Return the topics of a stream as the examples print them."""
    return [described(topic) async for topic in client.topics.list(stream)]


async def watched(client: Client, stream: str, last: int) -> list[dict[str, Any]]:
    """Return all changes of the topics of a stream up to a revision, as the examples print them."""
    found: list[dict[str, Any]] = []
    async with client.watch(from_revision=1, stream=stream, entity_types=[Topic]) as watch:
        while watch.revision < last:
            for revision in await watch.come_to(last):
                found += _lines(revision.revision, revision.changes)
    return found


def _lines(revision: int, changes: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {"revision": revision, "kind": KINDS[change.kind], **described(decoded(change))}
        for change in changes
    ]


def joined(told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the topics that follow from what a watch has told: a list, and changes behind it."""
    topics: dict[int, dict[str, Any]] = {}
    for line in told:
        if "list" in line:
            topics = {topic["id"]: topic for topic in line["list"]}
        elif line["kind"] == "deleted":
            topics.pop(line["id"], None)
        else:
            topics[line["id"]] = {key: line[key] for key in ("topic", "id", "partitions_count")}
    return [topics[id_] for id_ in sorted(topics)]


async def test_examples_log_in(cluster: ExampleCluster, example: BuiltExample) -> None:
    """An example logs in with a password, and says by its reason why another one is refused."""
    flags = cluster.flags(cluster.replicas.addresses)
    assert await example.told(*flags, "login") == [{"user_id": 0, "username": "root"}]
    wrong = example.directory / "wrong"
    wrong.write_text("wrong\n")
    async with example.running(*flags, "--password-file", str(wrong), "login") as process:
        assert "INVALID_CREDENTIALS" in await process.refused()


async def test_examples_create_what_is_missing(
    cluster: ExampleCluster, example: BuiltExample
) -> None:
    """An example creates a stream and topics once, by way of a backup, and lists all pages."""
    stream = f"stream-{secrets.token_hex(4)}"
    async with cluster.connected() as client:
        backup = (await cluster.addresses(client))[1]
        for is_new, names in ((True, TOPICS[:3]), (False, TOPICS[:3])):
            told = await example.told(*cluster.flags([backup]), "topology", stream, *names)
            created = [{"topic": name, "created": is_new} for name in names]
            assert told[:4] == [{"stream": stream, "created": is_new}, *created]
        told = await example.told(*cluster.flags([backup]), "topology", stream, *TOPICS)
        assert [line["created"] for line in told[:6]] == [False] * 4 + [True] * 2
        assert told[6:] == await listed(client, stream)
    assert [line["topic"] for line in told[6:]] == list(TOPICS)


async def test_examples_are_exact_over_failovers(
    cluster: ExampleCluster, example: BuiltExample
) -> None:
    """Each command takes effect once and in order though primaries die, and a watch shows that."""
    stream = f"stream-{secrets.token_hex(4)}"
    async with cluster.connected() as client:
        addresses = await cluster.addresses(client)
        await example.told(*cluster.flags(addresses), "topology", stream, LEDGER)
        # The watch begins at the primary. The other one is to find it from a backup.
        flags, others = cluster.flags(addresses), cluster.flags(addresses[1:])
        async with (
            example.running(*flags, "watch", stream, "1") as watch,
            example.running(*others, "add-partitions", stream, LEDGER) as adding,
        ):
            for _ in range(FAILOVERS):
                await fail_over(cluster, client, adding)
            told = await adding.finished()
            check_once(told)
            assert told[0]["opened"] == addresses[0]
            last = replies(told)[-1]["revision"]
            await watch.until(lambda: bool(watch.told) and watch.told[-1]["revision"] == last)
        assert watch.told == await watched(client, stream, last)
        assert joined(watch.told) == await listed(client, stream)
        partitions = await client.topics.partitions(stream, LEDGER)
        made = [(each.count, each.created_revision) for each in partitions]
        assert made[1:] == [(1, reply["revision"]) for reply in replies(told)]


async def fail_over(cluster: ExampleCluster, client: Client, adding: ExampleProcess) -> None:
    """Kill the primary in the midst of commands, and wait until all of them have their answers."""
    primary = cluster.replicas.replicas[(await client.status()).primary]
    begin = len(replies(adding.told))
    adding.feed(["1"] * COMMANDS_PER_FAILOVER)
    await adding.until(lambda: len(replies(adding.told)) >= begin + ANSWERED_BEFORE)
    primary.kill(COORDINATOR)
    await adding.until(lambda: len(replies(adding.told)) == begin + COMMANDS_PER_FAILOVER)
    await cluster.replicas.wait_ready()


def replies(told: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the lines that tell a reply."""
    return [line for line in told if "number" in line]


def check_once(told: Sequence[Mapping[str, Any]]) -> None:
    """Check that commands that each add a partition took effect once, in the order of numbers."""
    count = FAILOVERS * COMMANDS_PER_FAILOVER
    answers = replies(told)
    assert [reply["number"] for reply in answers] == list(range(1, count + 1))
    # One partition was there before.
    assert [reply["partitions_count"] for reply in answers] == list(range(2, count + 2))
    openings = [line["sent_again"] for line in told if "opened" in line]
    assert len(openings) > FAILOVERS
    assert any(openings), "no request was under way when a primary died"


async def test_examples_list_anew(cluster: ExampleCluster, example: BuiltExample) -> None:
    """A watch from a revision that is not kept lists, and goes on; a change of rights ends none."""
    stream, user = (f"{kind}-{secrets.token_hex(4)}" for kind in ("stream", "user"))
    password = example.directory / user
    password.write_text(PASSWORD)
    who = ("--username", user, "--password-file", str(password))
    may_read, may_more = users_pb2.Permissions(), users_pb2.Permissions()
    for flag, permissions in (("read_streams", (may_read, may_more)), ("read_users", (may_more,))):
        for each in permissions:
            setattr(getattr(each, "global"), flag, True)
    async with cluster.connected() as client:
        await client.streams.create(stream)
        for name in TOPICS[:3]:
            await client.topics.create(stream, name, partitions_count=1)
        # Nothing is kept for a user from before what the user may do has changed.
        await client.users.create(user, PASSWORD, permissions=may_read)
        flags = cluster.flags(cluster.replicas.addresses, who)
        async with example.running(*flags, "watch", stream, "1") as watch:
            await watch.until(lambda: bool(watch.told))
            assert watch.told[0]["list"] == await listed(client, stream)
            await client.topics.create(stream, TOPICS[3], partitions_count=2)
            # Only then is the watch open again: a change of rights before would have it list anew.
            await watch.until(lambda: watch.told[-1].get("topic") == TOPICS[3])
            await client.users.update_permissions(user, may_more)
            await client.topics.delete(stream, TOPICS[0])
            await client.topics.create(stream, TOPICS[4], partitions_count=3)
            await watch.until(lambda: watch.told[-1]["topic"] == TOPICS[4])
        kinds = [line["kind"] for line in watch.told[1:]]
        assert kinds == ["created", "deleted", "created"]
        assert joined(watch.told) == await listed(client, stream)
