"""BlameEntity page by page, as callers see it: nothing is lost between two answers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from coordinator.gateway.blame_targets import BlamedTarget
from coordinator.gateway.blames import BLAME_PATH, Blames
from coordinator.gateway.past_access import PastAccess, PresentAnswers, PresentQuestion
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.routes import Routes
from coordinator.replica.batcher import Reply
from tests.coordinator.history.past_trial import PastTrial
from tests.past.past_histories import history, sealed
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.history.v1.history_service_pb2 import BlameEntityRequest, BlameEntityResponse
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.client.errors import ProtocolError
from viewstamp.client.history import blame_pages, blame_request
from viewstamp.errors import Refusal
from viewstamp.past_limits import BLAME_IDS_MAX
from viewstamp.tokens import AccessToken

GONE = Refusal(Reason.REASON_TOPIC_NOT_FOUND, "gone")
DENIED = Refusal(Reason.REASON_PERMISSION_DENIED, "no")
TOPIC = streams_api.GetTopicResponse()
TOPIC.topic.id = 5
FOUND = TOPIC.SerializeToString()
MAY = b""


class Root(Authenticator):
    """Takes everybody for root."""

    def __init__(self) -> None:
        super().__init__(bytes(32), bytes(16), lambda: 0)

    def principal(self, metadata: Any) -> AccessToken:
        """Return root."""
        return AccessToken(user_id=0, credential_revision=1, expires_at_us=0)


class GoneAtPresent(PastAccess):
    """A present at which root may list all, and no topic is left."""

    def __init__(self, op: int) -> None:
        self.routes = Routes()
        self._reply = Reply(1, op, 1000, ())

    async def ask(
        self, user_id: int, stamp: int, revision: int, questions: Sequence[PresentQuestion]
    ) -> PresentAnswers:
        """Answer."""
        return PresentAnswers(self._reply, (GONE, MAY, MAY, GONE), 0)


class BlameCall:
    """What gRPC gives a handler."""

    def invocation_metadata(self) -> tuple[()]:
        """Return nothing."""
        return ()


async def changes(page_size: int) -> list[int]:
    """Return the revisions at which topics of one name changed, from all pages."""
    trial = PastTrial(sealed(history(Random(9), 10)))
    access = GoneAtPresent(len(trial.entries))
    blames = Blames(bytes(16), Root(), access, trial.turns, lambda: None)
    handler = blames.handlers()[BLAME_PATH].unary_unary

    async def ask(request: BlameEntityRequest) -> BlameEntityResponse:
        answer = await handler(request.SerializeToString(), BlameCall())
        return BlameEntityResponse.FromString(answer)

    request = blame_request({"stream": 2, "topic": "a"}, 1, page_size)
    return [c.revision async for page in blame_pages(ask, request) for c in page.changes]


async def test_pages_follow_an_entity_that_had_the_name() -> None:
    """What had a name is followed over all pages, also once it has another one."""
    whole = await changes(100)
    assert len(whole) > 2
    assert await changes(1) == whole


@pytest.mark.parametrize(
    ("answers", "ids", "sought"),
    [
        ((FOUND, MAY, MAY), {7, 8}, {5, 7, 8}),
        ((FOUND, DENIED, MAY), {5}, {5}),
        ((GONE, MAY, MAY), {7}, {7}),
        ((FOUND, MAY, MAY), set(range(10, 10 + BLAME_IDS_MAX)), set(range(10, 10 + BLAME_IDS_MAX))),
    ],
)
def test_ids_of_the_page_before(
    answers: tuple[bytes | Refusal, ...], ids: set[int], sought: set[int]
) -> None:
    """Ids that a caller sends are sought too, in what the entity is in."""
    found = target(ids).sought((*answers, GONE))
    assert (set(found.ids), found.stream_id) == (sought, 0 if answers[0] == FOUND else 3)


def test_ids_that_lead_elsewhere() -> None:
    """Whoever may not list the kind gets nowhere with ids of others, nor with too many."""
    with pytest.raises(Refusal) as refused:
        target({5, 6}).sought((FOUND, DENIED, MAY, GONE))
    assert refused.value is DENIED
    with pytest.raises(Refusal, match="1001 ids") as refused:
        target(set(range(BLAME_IDS_MAX + 1)))
    assert refused.value.reason == Reason.REASON_MALFORMED_REQUEST


def target(ids: set[int]) -> BlamedTarget:
    """Return what a request with ids asks about."""
    request = blame_request({"stream": 3, "topic": "paid"}, 1, 0)
    request.ids.extend(ids)
    return BlamedTarget(request)


USER = users_api.GetUserResponse()
USER.user.id = 4
GROUP = groups_api.GetConsumerGroupResponse()
GROUP.group.id, GROUP.group.stream_id, GROUP.group.topic_id = 9, 2, 3
NAMES: dict[str, tuple[dict[str, int | str | None], Any]] = {
    "members": ({"stream": "s", "topic": "t", "group": "g"}, GROUP),
    "tokens": ({"user": "u"}, USER),
    "placements": ({"stream": "s", "topic": "t"}, TOPIC),
}
WHOSE = {"members": 9, "tokens": 4, "placements": 5}


@pytest.mark.parametrize("part", NAMES)
def test_what_belongs_to_an_entity_is_that_of_one_id(part: Any) -> None:
    """Whoever may read an entity may ask for what belongs to it, and not for that of its name."""
    names, answer = NAMES[part]
    target = BlamedTarget(blame_request(names, 1, 0, part))
    found = target.sought((answer.SerializeToString(), MAY, MAY, GONE))
    assert (set(found.ids), found.name) == ({WHOSE[part]}, "")
    assert found.part_type.rpartition(".")[2] in {"Member", "PersonalAccessToken", "Placements"}
    with pytest.raises(Refusal) as refused:
        target.sought((DENIED, MAY, MAY, GONE))
    assert refused.value is DENIED
    assert (
        BlamedTarget(blame_request(names, 1, 0))
        .sought((answer.SerializeToString(), MAY, MAY, GONE))
        .part_type
        == ""
    )


@pytest.mark.parametrize(
    ("names", "part", "partition", "says"),
    [
        ({"user": "u"}, "members", None, "members are of a group, and it names a user"),
        ({"stream": "s"}, "placements", None, "placements are of a topic, and it names a stream"),
        (NAMES["members"][0], "tokens", None, "tokens are of a user, and it names a group"),
        ({"broker": 1}, "tokens", None, "tokens are of a user, and it names a broker"),
        (NAMES["placements"][0], None, 3, "ask for the part BLAMED_PART_PLACEMENTS with it"),
        (NAMES["members"][0], "members", 3, "ask for the part BLAMED_PART_PLACEMENTS with it"),
    ],
)
def test_parts_that_an_entity_does_not_have(
    names: dict[str, int | str | None], part: Any, partition: int | None, says: str
) -> None:
    """What belongs to another kind of entity is refused, and told what it belongs to."""
    with pytest.raises(Refusal, match=says) as refused:
        BlamedTarget(blame_request(names, 1, 0, part, partition))
    assert refused.value.reason == Reason.REASON_MALFORMED_REQUEST


def test_a_part_that_no_build_knows() -> None:
    """A part of a later build is refused, and never answered with something else."""
    request = blame_request({"user": "u"}, 1, 0)
    request.part = 77  # type: ignore[assignment]
    with pytest.raises(Refusal, match="knows no part 77: upgrade the cluster"):
        BlamedTarget(request)
    with pytest.raises(ValueError, match="there is no part 'topics': give one of members, tokens"):
        blame_request({"user": "u"}, 1, 0, "topics")  # type: ignore[arg-type]


async def test_a_part_is_not_mistaken_for_its_entity() -> None:
    """An older build answers with changes of the entity itself, and that is an error."""

    async def ask(request: BlameEntityRequest) -> BlameEntityResponse:
        return BlameEntityResponse()

    with pytest.raises(ProtocolError, match="upgrade it first"):
        await anext(blame_pages(ask, blame_request({"user": "u"}, 1, 0, "tokens")))
