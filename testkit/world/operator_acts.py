"""What operators do in a world: snapshots, status, alarms, levels, sessions, health, reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from coordinator.gateway.infrastructure import REFLECTION
from testkit.world.wanderer_acts import endpoint
from testkit.world.wanderer_offsets import change_offsets, report_data
from testkit.world.wanderer_past import blame, crowd, follow_the_log, look_back
from testkit.world.wanderers import PASSWORD, Act, Wanderer
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.client import LINEARIZABLE, STALE
from viewstamp.client.transport import unary

_RETENTIONS: Final = (
    snapshots_pb2.RETENTION_CLASS_LAST,
    snapshots_pb2.RETENTION_CLASS_DAILY,
    snapshots_pb2.RETENTION_CLASS_PINNED,
)
_LEVELS: Final = (1, 2, 3, 9)
_TIMEOUT_S: Final = 5.0
_TOGETHER: Final = 12


async def generation(w: Wanderer) -> int:
    """Return a generation, mostly one that there is."""
    found = [each.generation async for each in w.client.snapshots.list(page_size=2)]
    return w.random.choice([*found, *found, 0, 1, 1 << 40])


async def snapshot(w: Wanderer) -> None:
    """Take a snapshot, and now and then wait for it."""
    made = await w.client.snapshots.create(retention=w.random.choice(_RETENTIONS))
    if w.requests.chance(2):
        await w.client.snapshots.decided(made.generation)


async def look_at_snapshots(w: Wanderer) -> None:
    """Ask for generations in every way."""
    api, level = w.client.snapshots, w.random.choice((LINEARIZABLE, STALE))
    await w.tried(api.get(await generation(w), consistency=level), None)
    await w.tried(api.latest(consistency=level), None)
    await w.tried(api.current(wait=w.requests.chance(4), consistency=level), None)
    stage: Any = w.random.choice((1, 2, 3, 4, 5, 9))
    await w.tried(api.lookup_generation(stage, consistency=level), None)


async def change_snapshots(w: Wanderer) -> None:
    """Delete, prune and keep generations."""
    api, chosen = w.client.snapshots, await generation(w)
    await w.tried(api.set_retention(chosen, w.random.choice(_RETENTIONS)), None)
    await w.tried(api.delete(chosen), None)
    validate = w.requests.chance(2)
    await api.prune(keep_last=w.random.choice((0, 1, 3)), keep_daily=1, validate_only=validate)


async def verify(w: Wanderer) -> None:
    """Verify a generation, all of it or its beginning."""
    await _read_some(w, w.client.snapshots.verify(await generation(w)))


async def download(w: Wanderer) -> None:
    """Download a generation, all of it or its beginning."""
    await _read_some(w, w.client.snapshots.download(await generation(w)))


async def _read_some(w: Wanderer, messages: AsyncIterator[Any]) -> None:
    left = w.random.choice((1, 3, 1_000, 1_000))
    async for _ in messages:
        left -= 1
        if not left:
            return


async def status(w: Wanderer) -> None:
    """Ask any replica for the status and the alarms."""
    level = w.random.choice((LINEARIZABLE, STALE))
    found = await w.client.status(include_digests=w.requests.chance(2), consistency=level)
    await w.client.call(cluster_pb2.ListAlarmsRequest(), consistency=level)
    await w.tried(look_back(w, found.header.revision), None)


async def ask_together(w: Wanderer) -> None:
    """Ask for more at once than is told at once: digests, and the end of a snapshot."""
    digests = [w.client.status(include_digests=True) for _ in range(_TOGETHER)]
    waits = [w.client.snapshots.current(wait=True) for _ in range(_TOGETHER)]
    await asyncio.gather(*(w.tried(each, None) for each in (*digests, *waits)))


async def step_down(w: Wanderer) -> None:
    """Have the primary hand over."""
    await w.client.step_down()


async def levels(w: Wanderer) -> None:
    """Raise the feature level, by one or wrongly."""
    level = w.random.choice(_LEVELS)
    validate, expected = w.requests.chance(2), level - w.random.choice((1, 1, 2))
    await w.client.raise_feature_level(level, max(0, expected), validate_only=validate)


async def describe(w: Wanderer) -> None:
    """Describe the cluster."""
    text = w.random.choice(("", "of a world", "x" * 5_000))
    await w.client.describe_cluster(text, validate_only=w.requests.chance(3))


async def sessions(w: Wanderer) -> None:
    """List the sessions, and end those of a user."""
    await w.tried(w.client.sessions.own(), None)
    found = [each async for each in w.client.sessions.list(page_size=w.random.choice((0, 1, 50)))]
    others = [each for each in found if each.user_id]
    if others:
        chosen = w.random.choice(others)
        session_id = chosen.session_id if w.requests.chance(2) else None
        await w.client.sessions.end(user=chosen.user_id, session_id=session_id)


async def end_a_user(w: Wanderer) -> None:
    """Let a user with a session and a token ask, and lose the token, the status or everything."""
    name = f"{w.name}-{w.random.getrandbits(32):x}"
    await w.client.users.create(name, PASSWORD)
    user, where = await w.connected(name, PASSWORD), endpoint(w)
    login = users_api.LoginRequest(username=name, password=PASSWORD)
    try:
        async with where.open() as channel:
            token = (await unary(channel, login)).access_token
        await w.tried(user.tokens.create("short-lived"), None)
        end = w.random.choice(
            (
                lambda: w.client.tokens.revoke(name, "short-lived"),
                lambda: w.client.users.update(name, status=users_pb2.USER_STATUS_INACTIVE),
                lambda: w.client.users.delete(name),
            )
        )
        await asyncio.gather(*(w.tried(each, None) for each in (end(), user.users.who_am_i())))
        await w.tried(user.tokens.create("too late"), None)
        async with where.open() as channel:
            asking = unary(channel, users_api.WhoAmIRequest(), access_token=token)
            await w.tried(asking, None)
    finally:
        await user.close(end_session=False)


async def health(w: Wanderer) -> None:
    """Ask for health, once and by a stream."""
    service = w.random.choice(("", "liveness", "readiness", "x"))
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    async with endpoint(w).open() as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        await w.tried(check(request, timeout=_TIMEOUT_S), None)
        watching: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        watch = watching(request, timeout=_TIMEOUT_S)
        await watch.read()
        watch.cancel()


async def reflection(w: Wanderer) -> None:
    """Ask which methods there are."""
    asked = w.random.choice(
        (
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="viewstamp.api.nothing"),
        )
    )
    sent = w.random.choice((asked.SerializeToString(), b"\xff"))
    async with endpoint(w).open() as channel:
        asking: Any = channel.stream_stream(REFLECTION)
        call = asking(timeout=_TIMEOUT_S)
        await call.write(sent)
        await call.read()
        call.cancel()


async def ask_replica(w: Wanderer) -> None:
    """Ask one replica what it has itself, without a token."""
    async with endpoint(w).open() as channel:
        await unary(channel, cluster_pb2.GetStatusRequest(), stale=True, timeout_s=_TIMEOUT_S)


ACTS: Final[tuple[tuple[int, Act], ...]] = (
    (3, snapshot),
    (3, look_at_snapshots),
    (3, change_snapshots),
    (3, verify),
    (3, download),
    (2, status),
    (1, step_down),
    (2, levels),
    (1, ask_together),
    (1, describe),
    (2, sessions),
    (2, end_a_user),
    (2, health),
    (2, reflection),
    (1, ask_replica),
    (1, report_data),
    (1, change_offsets),
    (2, blame),
    (1, crowd),
    (1, follow_the_log),
)
