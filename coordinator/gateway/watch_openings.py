"""How a watch begins: who may watch what, decided at one revision, and from where on.

One linearizable read asks for everything. Its first spans are ordinary reads of the caller, which
find what the watch names and demand the permission to see it: whoever may read a topic may watch
it. The last span asks when the caller's access has changed. Changes from before that are not given
out, since the access of that time is not known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from coordinator.gateway.change_pages import ChangeReads, changes_span, confirmed, page_of
from coordinator.gateway.replies import result_of
from coordinator.gateway.routes import Routes
from coordinator.gateway.watch_filters import WatchFilter, check_shape, wanted_types
from coordinator.mux import types as mux
from coordinator.replica.batcher import Reply
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import ROOT_USER_ID
from viewstamp.tokens import AccessToken

_STREAMS: Final = "/viewstamp.api.streams.v1.StreamsService/"
_LIST_USERS: Final = "/viewstamp.api.users.v1.UsersService/ListUsers"
_GET_GROUP: Final = "/viewstamp.api.consumer_groups.v1.ConsumerGroupsService/GetConsumerGroup"


@dataclass(frozen=True, slots=True)
class _Question:
    """A read that the caller must be allowed to make; `ids` takes what is watched from the answer:
    stream, topic and group, 0 for none."""

    path: str
    request: Message
    ids: Callable[[bytes], tuple[int, int, int]] = lambda answer: (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Opened:
    """A watch that may begin, at `from_revision`; `reply` says where it was decided."""

    wanted: WatchFilter
    from_revision: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class OpeningPorts:
    """What an opening asks.

    `watched` are the types that the services show, by stage; `compacted_revision` is the last
    revision that nobody may watch any more, as the log has decided.
    """

    cluster_id: bytes
    routes: Routes
    reads: ChangeReads
    watched: Callable[[], Mapping[mux.Stage, Collection[str]]]
    compacted_revision: Callable[[], int]


class WatchOpenings:
    """Decides about watches."""

    def __init__(self, ports: OpeningPorts) -> None:
        self._ports = ports

    async def open(self, request: watch_pb2.WatchRequest, principal: AccessToken) -> Opened:
        """Return how a watch begins. Raises Refusal."""
        watched = self._watched()
        check_shape(request)
        types = wanted_types(request, watched)
        questions = _questions(request, types, watched)
        reply = await self._asked(questions, request, principal)
        ids = [each.ids(result_of(reply, index)) for index, each in enumerate(questions)]
        from_revision = request.from_revision or reply.first_revision + 1
        access_revision = page_of(reply, len(questions)).access_revision
        # Root has always been allowed everything.
        is_root = principal.user_id == ROOT_USER_ID
        self._check_kept(request, from_revision, 0 if is_root else access_revision)
        # Only a watch without a place asks several questions.
        return Opened(WatchFilter(types, *ids[0]), from_revision, reply)

    def _watched(self) -> Mapping[int, Collection[str]]:
        """Return the types by stage. Raises Refusal UNIMPLEMENTED if a service is too old."""
        watched = self._ports.watched()
        for stage in mux.SERVICE_STAGES:
            if not watched.get(stage):
                raise Refusal(
                    Reason.REASON_UNIMPLEMENTED,
                    f"the service of {stage.name.lower()} does not keep changes: upgrade it",
                    method="Watch",
                )
        return {int(stage): names for stage, names in watched.items()}

    async def _asked(
        self,
        questions: Collection[_Question],
        request: watch_pb2.WatchRequest,
        principal: AccessToken,
    ) -> Reply:
        """Ask everything at one revision, not before what the caller has seen. Raises Refusal."""
        ports = self._ports
        spans = [
            mux.ReadSpan(
                ports.routes.public(each.path).code, 1, frame(each.request.SerializeToString())
            )
            for each in questions
        ]
        access = domain_pb2.ChangesRequest(user_id=principal.user_id)
        read = mux.Read(
            ports.reads.next_token(),
            (*spans, changes_span(mux.Stage.STREAMS, access)),
            principal.user_id,
            principal.credential_revision,
        )
        revision = max(0, request.from_revision - 1)
        advice = "try again, or watch from an earlier revision"
        return await confirmed(ports.reads, read, revision, advice)

    def _check_kept(
        self, request: watch_pb2.WatchRequest, from_revision: int, access_revision: int
    ) -> None:
        """Raise Refusal REVISION_COMPACTED for a revision that this caller may not watch."""
        ports = self._ports
        if request.cluster_id and request.cluster_id != ports.cluster_id:
            raise compacted(
                "the revision belongs to another cluster", from_revision, access_revision + 1
            )
        oldest = max(access_revision, ports.compacted_revision()) + 1
        if from_revision >= oldest:
            return
        is_access = access_revision + 1 == oldest
        why = "what you may do has changed since" if is_access else "a snapshot has taken its place"
        raise compacted(why, from_revision, oldest)


def compacted(why: str, revision: int, oldest: int) -> Refusal:
    """Return the refusal of a revision that cannot be watched any more."""
    return Refusal(
        Reason.REASON_REVISION_COMPACTED,
        f"changes of revision {revision} are not kept ({why}): list again, and watch from the"
        f" revision of the list; the oldest one is {oldest}",
        revision=revision,
        oldest=oldest,
    )


def _questions(
    request: watch_pb2.WatchRequest,
    types: Collection[str],
    watched: Mapping[int, Collection[str]],
) -> list[_Question]:
    """Return what to ask; at least one question."""
    if request.HasField("group"):
        return [_group_question(request)]
    if request.HasField("topic"):
        return [_topic_question(request)]
    if request.HasField("stream"):
        one = streams_api.GetStreamRequest(stream=request.stream)
        return [_Question(_STREAMS + "GetStream", one, _stream_ids)]
    users = watched[mux.Stage.USERS]
    asked = []
    if any(name in users for name in types):
        asked.append(_Question(_LIST_USERS, users_api.ListUsersRequest(page_size=1)))
    if any(name not in users for name in types):
        listed = streams_api.ListStreamsRequest(page_size=1)
        asked.append(_Question(_STREAMS + "ListStreams", listed))
    return asked


def _topic_question(request: watch_pb2.WatchRequest) -> _Question:
    one = streams_api.GetTopicRequest(stream=request.stream, topic=request.topic)
    return _Question(_STREAMS + "GetTopic", one, _topic_ids)


def _group_question(request: watch_pb2.WatchRequest) -> _Question:
    one = groups_api.GetConsumerGroupRequest(
        stream=request.stream, topic=request.topic, group=request.group, page_size=1
    )
    return _Question(_GET_GROUP, one, _group_ids)


def _stream_ids(answer: bytes) -> tuple[int, int, int]:
    return streams_api.GetStreamResponse.FromString(answer).stream.id, 0, 0


def _topic_ids(answer: bytes) -> tuple[int, int, int]:
    topic = streams_api.GetTopicResponse.FromString(answer).topic
    return topic.stream_id, topic.id, 0


def _group_ids(answer: bytes) -> tuple[int, int, int]:
    group = groups_api.GetConsumerGroupResponse.FromString(answer).group
    return group.stream_id, group.topic_id, group.id
