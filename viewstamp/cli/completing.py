"""Names for TAB: of entities, from the cluster, and of contexts.

A shell has no place for an error, a question or a long wait. So there is a deadline, whatever goes
wrong means that no name is offered, and only a login or token that is there already is used. Any
replica answers, from its own state.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from viewstamp.cli.settings import Settings

# How long TAB may take beyond the start of the program.
DEADLINE_S: Final = 1.0
# Entities that are looked at, so that no list is long for a shell or costly for a cluster.
ENTITIES_MAX: Final = 1000
SEPARATOR: Final = "/"

# A request, the field of its answer with the entities, and the name of an entity.
Lookup = tuple[Any, str, Callable[[Any], str]]


def complete_stream(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of streams; behind a slash, of what is in one, where the command takes that."""
    depth = incomplete.count(SEPARATOR)
    lookups: list[Callable[..., Lookup]] = [_of_streams, _of_topics, _of_groups]
    deeper = lookups[: max(1, _places_of(context))]
    if depth >= len(deeper):
        return []
    *within, _ = incomplete.split(SEPARATOR)
    found = _looked_up(context, lambda: deeper[depth](*within))
    return [SEPARATOR.join([*within, name]) for name in found]


def complete_topic(context: typer.Context) -> list[str]:
    """Return names of topics of the stream that was given."""
    return _looked_up(context, lambda: _of_topics(context.params["stream"]))


def complete_group(context: typer.Context) -> list[str]:
    """Return names of groups of the topic that was given."""
    place = context.params
    return _looked_up(context, lambda: _of_groups(place["stream"], place["topic"]))


def complete_user(context: typer.Context) -> list[str]:
    """Return names of users."""
    return _looked_up(context, _of_users)


def complete_broker(context: typer.Context) -> list[str]:
    """Return names of brokers."""
    return _looked_up(context, _of_brokers)


def complete_token(context: typer.Context) -> list[str]:
    """Return names of personal access tokens: of the user that was given, else your own."""
    return _looked_up(context, lambda: _of_tokens(context.params.get("user")))


def complete_generation(context: typer.Context) -> list[str]:
    """Return the generations of snapshots."""
    return _looked_up(context, _of_snapshots)


def complete_replica(context: typer.Context) -> list[str]:
    """Return the ids of replicas."""
    return _looked_up(context, _of_replicas)


def complete_context() -> list[str]:
    """Return names of contexts."""
    from viewstamp.cli.contexts import ContextStore

    # A damaged file is told by the command itself.
    with suppress(ValueError, OSError):
        return list(ContextStore().load().named)
    return []


def _places_of(context: typer.Context) -> int:
    """Return how many of stream, topic and group a command takes as arguments."""
    arguments = {one.name for one in context.command.params if one.param_type_name == "argument"}
    return len(arguments & {"stream", "topic", "group"})


def _looked_up(context: typer.Context, lookup: Callable[[], Lookup]) -> list[str]:
    """Return the names that a lookup finds; none if anything goes wrong."""
    # Imported late: most completions need neither a cluster nor its settings.
    import asyncio

    from viewstamp.cli.global_options import read_settings

    # Whatever is wrong, the command itself tells it when it is called.
    with redirect_stderr(io.StringIO()), suppress(Exception):
        settings = read_settings(context.find_root())
        return asyncio.run(_asked(settings, lookup()))
    return []


async def _asked(settings: Settings, lookup: Lookup) -> list[str]:
    import asyncio

    from viewstamp.cli.session import kept_credentials
    from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoint, unary

    found = kept_credentials(settings)
    if found is None:
        return []
    settings, credentials = found
    identity = AccessTokenSource(Credentials(**credentials))
    request, field, name = lookup
    share_s = DEADLINE_S / len(settings.addresses)
    for address in settings.addresses:
        # The next replica may answer where this one is down, or slow.
        with suppress(Exception):
            async with (
                asyncio.timeout(share_s),
                Endpoint(address, settings.tls_ca).open() as channel,
            ):
                token = await identity.access_token(channel)
                answer = await unary(channel, request, access_token=token, stale=True)
                return [name(entity) for entity in getattr(answer, field)]
    return []


def _of_streams() -> Lookup:
    from viewstamp.api.streams.v1 import streams_service_pb2 as api

    return api.ListStreamsRequest(page_size=ENTITIES_MAX), "streams", _part


def _of_topics(stream: str) -> Lookup:
    from viewstamp.api.streams.v1 import streams_service_pb2 as api

    request = api.ListTopicsRequest(stream=_named(stream), page_size=ENTITIES_MAX)
    return request, "topics", _part


def _of_groups(stream: str, topic: str) -> Lookup:
    from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api

    request = api.ListConsumerGroupsRequest(
        stream=_named(stream), topic=_named(topic), page_size=ENTITIES_MAX
    )
    return request, "groups", _part


def _of_users() -> Lookup:
    from viewstamp.api.users.v1 import users_service_pb2 as api

    return api.ListUsersRequest(page_size=ENTITIES_MAX), "users", _part


def _of_brokers() -> Lookup:
    from viewstamp.api.brokers.v1 import brokers_service_pb2 as api

    return api.ListBrokersRequest(page_size=ENTITIES_MAX), "brokers", _part


def _of_tokens(user: str | None) -> Lookup:
    from viewstamp.api.users.v1 import users_service_pb2 as api

    whose = None if user is None else _named(user)
    request = api.ListPersonalAccessTokensRequest(user=whose, page_size=ENTITIES_MAX)
    return request, "tokens", lambda token: str(token.name)


def _of_snapshots() -> Lookup:
    from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as api

    request = api.ListSnapshotsRequest(page_size=ENTITIES_MAX)
    return request, "snapshots", lambda snapshot: str(snapshot.generation)


def _of_replicas() -> Lookup:
    from viewstamp.api.cluster.v1 import cluster_service_pb2 as api

    return api.GetStatusRequest(), "replicas", lambda replica: str(replica.replica_id)


def _part(entity: Any) -> str:
    from viewstamp.cli.canonical import part

    name: str = entity.username if hasattr(entity, "username") else entity.name
    return part(name, entity.id)


def _named(text: str) -> Any:
    from viewstamp.cli.grammar import entity
    from viewstamp.client.identifiers import identifier

    return identifier(entity(text))
