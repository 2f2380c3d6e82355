"""The display while a standby comes up to date, so that it can be given a vote."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import grpc.aio

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.cli.output import plain
from viewstamp.cli.snapshot_options import progress_console
from viewstamp.client.errors import ClientError
from viewstamp.client.verdicts import ELSEWHERE, verdict_on
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
    from viewstamp.cli.settings import Settings
    from viewstamp.client import Client

# Replicas report twice a second.
INTERVAL_S: Final = 0.5


async def promoted_once_ready(
    settings: Settings, client: Client, replica_id: int, *, patience_s: float, dry_run: bool
) -> cluster_pb2.PromoteReplicaResponse:
    """Ask again until the standby is ready, and show on a terminal how far it is.

    A change of the primary in between is waited for, too: to ask again does no harm. Raises the
    error of the last attempt.
    """
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + patience_s
    console = progress_console(settings)
    with console.status(f"waiting for replica {replica_id}") as line:
        while True:
            try:
                return await client.promote_replica(replica_id, validate_only=dry_run)
            except (Refusal, grpc.aio.AioRpcError) as error:
                if not is_for_now(error) or clock() + INTERVAL_S > deadline_s:
                    raise
            if console.is_terminal and not console.quiet:
                # Only the outcome matters, so a read that fails leaves the line as it is.
                with suppress(Refusal, ClientError):
                    line.update(told(replica_id, await client.status()))
            await asyncio.sleep(INTERVAL_S)


def is_for_now(error: Refusal | grpc.aio.AioRpcError) -> bool:
    """Return whether the standby may be ready, or a primary there, a little later."""
    if isinstance(error, Refusal):
        is_behind = error.reason == Reason.REASON_REPLICA_NOT_READY
        return is_behind or verdict_on(error) in ELSEWHERE
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def told(replica_id: int, status: cluster_pb2.GetStatusResponse) -> str:
    """Return the line about a standby."""
    begin = f"waiting for replica {replica_id}"
    for each in map(plain, status.replicas):
        if each["replica_id"] == replica_id:
            return f"{begin}: {each['status']}, {each['lag']} entries behind, {each['link']}"
    return f"{begin}: the primary has not heard of it"
