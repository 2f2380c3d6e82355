"""A place that narrow watchers watch, and the program that changes it all the time, as root.

A place is a stream with a topic and a group, and a user who may see it. Its keeper removes parts of
it now and then, or what the user may do, makes other changes meanwhile, and puts everything back.
It notes what it does before and after, so that what the watcher is told can be judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from testkit.load.watcher import TRY_AGAIN
from testkit.world.narrow_feeds import Hidden
from testkit.world.wanderers import PASSWORD
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client import Client, connect
from viewstamp.client.errors import ClientError
from viewstamp.client.identifiers import identifier
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.clients import Access

CONNECT_PATIENCE_S: Final = 120.0
_PAUSE_MS: Final = (5, 5, 50, 50, 50, 150, 150, 1_500)
_AGAIN_S: Final = 0.2
# Of so many changes one removes a part of the place.
_REMOVES_ONE_IN: Final = 10
_CHANGES_MEANWHILE: Final = (0, 15)
# A flood is a transaction of so many creations: more than a short feed holds.
_FLOOD: Final = (6, 60)
_TIMEOUTS_MS: Final = (10_000, 60_000)
# What a caller is told who asks again for what was done already.
_DONE_ALREADY: Final = frozenset(
    {
        Reason.REASON_STREAM_EXISTS,
        Reason.REASON_TOPIC_EXISTS,
        Reason.REASON_GROUP_EXISTS,
        Reason.REASON_USER_EXISTS,
        Reason.REASON_TOKEN_EXISTS,
        Reason.REASON_STREAM_NOT_FOUND,
        Reason.REASON_TOPIC_NOT_FOUND,
        Reason.REASON_GROUP_NOT_FOUND,
        Reason.REASON_USER_NOT_FOUND,
        Reason.REASON_TOKEN_NOT_FOUND,
    }
)
# What a keeper has to live with while there are faults, beside what a watcher has to.
_LIVED_WITH: Final = TRY_AGAIN | {
    Reason.REASON_OUTCOME_UNKNOWN,
    Reason.REASON_SESSION_EVICTED,
    Reason.REASON_SESSION_LIMIT,
    Reason.REASON_STREAM_REPLACED,
    Reason.REASON_NO_SPACE,
    Reason.REASON_UNAUTHENTICATED,
    Reason.REASON_COST_EXCEEDED,
    Reason.REASON_NOT_ENOUGH_BROKERS,
}

Call = Callable[[Client], Awaitable[Any]]


@dataclass
class WatchedPlace:
    """The names of a place, its ids, and what was done to it. The user of a scoped one sees no
    other place."""

    name: str
    is_scoped: bool
    ids: tuple[int, int, int] = (0, 0, 0)
    """Of its stream, topic and group."""
    token: str = ""
    """A personal access token of its user, empty if there is none."""
    is_whole: bool = False
    """Whether all of it is there, and its user may see it."""
    removals: int = 0
    """How often a part or a right was removed, counted before it begins."""
    last_revision: int = 0
    """The last revision of which its keeper was told."""
    hidden: list[Hidden] = field(default_factory=list)
    told: list[watch_pb2.Change] = field(default_factory=list)

    @property
    def path(self) -> tuple[str, str, str]:
        """The names of its stream, topic and group."""
        return self.name, self.name, self.name

    @property
    def permissions(self) -> users_pb2.Permissions:
        """What its user may do while it is whole."""
        result = users_pb2.Permissions()
        if self.is_scoped:
            result.streams.add(stream=Identifier(name=self.name), read_stream=True)
        else:
            getattr(result, "global").MergeFrom(
                users_pb2.GlobalPermissions(read_streams=True, read_users=True)
            )
        return result


class Keeper:
    """Changes a place until told to end, and then makes it whole."""

    def __init__(self, place: WatchedPlace, seed: int, access: Access) -> None:
        self.is_ending = False
        """Whether it ends once the place is whole."""
        self.is_done = False
        self._place = place
        self._random = Random(seed)
        self._access = access
        self._client: Client | None = None
        self._serial = 0

    async def run(self) -> None:
        """Change the place. Raises Refusal of what is never refused."""
        await self._make_whole()
        while not self.is_ending:
            await asyncio.sleep(self._random.randint(0, self._random.choice(_PAUSE_MS)) / 1_000)
            if self._random.randrange(_REMOVES_ONE_IN):
                await self._random.choice(_CHANGES)(self)
            else:
                await self._remove_something()
        await self._create_group(self._name_anew())
        self.is_done = True
        await self._hang_up()

    # --- Removals ---

    async def _remove_something(self) -> None:
        place = self._place
        remove, hides = self._random.choice(_REMOVALS)
        place.is_whole = False
        place.removals += 1
        removed = await remove(self)
        begin = place.last_revision
        for _ in range(self._random.randint(*_CHANGES_MEANWHILE)):
            await self._random.choice(_CHANGES)(self)
        # An answer that was lost may be of an earlier revision: then nothing is known.
        if hides and removed is not None:
            place.hidden.append(Hidden(begin, place.last_revision))
        await self._make_whole()

    async def _make_whole(self) -> None:
        """Make what is missing."""
        place, name = self._place, self._place.name
        await self._sure(lambda client: client.streams.create(name))
        await self._sure(lambda client: client.topics.create(name, name, partitions_count=3))
        await self._sure(lambda client: client.groups.create(*place.path))
        await self._sure(lambda client: client.users.create(name, PASSWORD))
        # Its answer is the last one, so it is certain even if the first try was not answered.
        allowed = await self._sure(
            lambda client: client.users.update_permissions(name, place.permissions)
        )
        assert allowed is not None, "the user is there"
        group = await self._sure(lambda client: client.groups.get(*place.path))
        place.ids = (group.stream_id, group.topic_id, group.id)
        if not place.token and self._random.randrange(2):
            await self._make_token()
        place.is_whole = True

    async def _make_token(self) -> None:
        """Make a personal access token as the user, who alone is shown it."""
        try:
            client = await self._connected(self._place.name, PASSWORD)
            async with client:
                self._place.token = (await client.tokens.create(self._name_anew())).token
        except (Refusal, ClientError):
            pass  # the user goes on with the password

    async def _remove_stream(self) -> Any:
        return await self._sure(lambda client: client.streams.delete(self._place.name))

    async def _remove_topic(self) -> Any:
        return await self._sure(lambda client: client.topics.delete(*self._place.path[:2]))

    async def _remove_group(self) -> Any:
        return await self._sure(lambda client: client.groups.delete(*self._place.path))

    async def _remove_grants(self) -> Any:
        return await self._sure(
            lambda client: client.users.update_permissions(self._place.name, None)
        )

    async def _remove_user(self) -> Any:
        self._place.token = ""
        return await self._sure(lambda client: client.users.delete(self._place.name))

    async def _remove_credentials(self) -> Any:
        """End what the user has logged in with; the password stays the same."""
        self._place.token = ""
        return await self._sure(
            lambda client: client.users.change_password(PASSWORD, user=self._place.name)
        )

    # --- Other changes ---

    async def _change_group(self) -> None:
        timeout_ms = self._random.randint(*_TIMEOUTS_MS)
        await self._sure(
            lambda client: client.groups.update(*self._place.path, member_timeout_ms=timeout_ms)
        )

    async def _come_and_go(self) -> None:
        """Make and delete a group of the place."""
        name = self._name_anew()
        await self._create_group(name)
        await self._sure(lambda client: client.groups.delete(*self._place.path[:2], name))

    async def _change_beside(self) -> None:
        """Make a stream and a user beside the place, and delete them."""
        name = self._name_anew()
        await self._sure(lambda client: client.streams.create(name))
        await self._sure(lambda client: client.users.create(name, PASSWORD))
        await self._sure(lambda client: client.streams.delete(name))
        await self._sure(lambda client: client.users.delete(name))

    async def _flood(self) -> None:
        """Make many groups in one transaction, and delete them with their topic."""
        topic, stream = self._name_anew(), self._place.name
        requests = [
            groups_api.CreateConsumerGroupRequest(
                stream=identifier(stream), topic=identifier(topic), name=f"{number}"
            )
            for number in range(self._random.randint(*_FLOOD))
        ]
        await self._sure(lambda client: client.topics.create(stream, topic))
        await self._sure(lambda client: client.transact(requests))
        await self._sure(lambda client: client.topics.delete(stream, topic))

    async def _create_group(self, name: str) -> None:
        path = self._place.path[:2]
        made = await self._sure(lambda client: client.groups.create(*path, name))
        if made is not None and self._place.is_whole:
            stream_id, topic_id, _ = self._place.ids
            self._place.told.append(
                watch_pb2.Change(
                    revision=made.header.revision,
                    domain=routing_pb2.STAGE_CONSUMER_GROUPS,
                    entity_type=consumer_groups_pb2.ConsumerGroup.DESCRIPTOR.full_name,
                    stream_id=stream_id,
                    topic_id=topic_id,
                    group_id=made.group_id,
                )
            )

    def _name_anew(self) -> str:
        self._serial += 1
        return f"{self._place.name}-{self._serial}"

    # --- Calls ---

    async def _sure(self, call: Call) -> Any:
        """Call until it is certain that it is done; return the answer, None if it was done before.

        Raises Refusal of what is never refused.
        """
        while True:
            try:
                if self._client is None:
                    self._client = await self._connected(ROOT_USERNAME, self._access.password)
                answer = await call(self._client)
            except Refusal as refusal:
                if refusal.reason in _DONE_ALREADY:
                    return None
                if refusal.reason not in _LIVED_WITH:
                    raise
            except ClientError:
                pass  # as long as there are faults
            else:
                self._note_revision(answer)
                return answer
            await self._hang_up()
            await asyncio.sleep(_AGAIN_S)

    def _note_revision(self, answer: Any) -> None:
        header = getattr(answer, "header", None)
        if header is not None:
            self._place.last_revision = max(self._place.last_revision, header.revision)

    async def _connected(self, username: str, password: str) -> Client:
        addresses = list(self._access.addresses)
        self._random.shuffle(addresses)
        return await connect(
            addresses,
            username=username,
            password=password,
            connect_timeout_s=CONNECT_PATIENCE_S,
            timeout_s=CONNECT_PATIENCE_S,
        )

    async def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


# What is removed, and whether the user may see nothing until it is back.
_REMOVALS: Final[Sequence[tuple[Callable[[Keeper], Awaitable[Any]], bool]]] = (
    (Keeper._remove_stream, False),
    (Keeper._remove_topic, False),
    (Keeper._remove_group, False),
    *((Keeper._remove_grants, True),) * 2,
    *((Keeper._remove_user, True),) * 2,
    (Keeper._remove_credentials, False),
)
_CHANGES: Final[Sequence[Callable[[Keeper], Awaitable[None]]]] = (
    *(Keeper._change_group,) * 4,
    *(Keeper._come_and_go,) * 3,
    *(Keeper._change_beside,) * 2,
    Keeper._flood,
)
