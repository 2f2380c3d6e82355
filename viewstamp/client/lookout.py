"""Looks at replicas beside the one that a client talks to: which leads, and in which cluster."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc.aio

from viewstamp.client.errors import ProtocolError
from viewstamp.client.link import open_stream
from viewstamp.client.transport import (
    LEARNED_TIMEOUT_S,
    AccessTokenSource,
    Endpoint,
    Endpoints,
    unary,
)
from viewstamp.errors import Refusal

# The limit for replicas to say that they lead.
LOOK_TIMEOUT_S: Final = 1.0


class Lookout:
    """Asks replicas for one client."""

    def __init__(self, endpoints: Endpoints, identity: AccessTokenSource) -> None:
        self._endpoints = endpoints
        self._identity = identity

    async def leading(self, cluster_id: bytes) -> Endpoint | None:
        """Return another replica of the list that leads the cluster; None if none says so.

        All are asked at once, so one that cannot be reached holds nobody up.
        """
        others = self._endpoints.others
        looks = [asyncio.create_task(self._look_at(each, cluster_id)) for each in others]
        try:
            for look in asyncio.as_completed(looks):
                if (endpoint := await look) is not None:
                    return endpoint
            return None
        finally:
            for look in looks:
                look.cancel()

    async def confirm(self, channel: grpc.aio.Channel, cluster_id: bytes) -> None:
        """See whether the cluster answers at an address that only the cluster told.

        A session would be lost, or registered in vain, where another cluster answers. Raises the
        errors of opening, TimeoutError, ProtocolError.
        """
        async with asyncio.timeout(LEARNED_TIMEOUT_S):
            if await self._cluster_at(channel) == cluster_id:
                self._endpoints.reached()
                return
        self._identity.forget_renewable()
        raise ProtocolError("another cluster answers at an address that this one told")

    async def _look_at(self, endpoint: Endpoint, cluster_id: bytes) -> Endpoint | None:
        """Return a replica if it leads: it opens a stream, and answers a linearizable read.

        A primary that is cut off opens streams for reads until it notices, but answers no such
        read.
        """
        # Imported late: few clients ever look for another replica.
        from viewstamp.api.users.v1 import users_service_pb2 as users_pb2

        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S), endpoint.open() as channel:
                found = await self._cluster_at(channel)
                token = await self._identity.access_token(channel)
                await unary(channel, users_pb2.WhoAmIRequest(), access_token=token)
        except (TimeoutError, OSError, ValueError, ProtocolError, Refusal, grpc.aio.AioRpcError):
            return None  # it has some fault, so there is no reason to go there
        return endpoint if found == cluster_id else None

    async def _cluster_at(self, channel: grpc.aio.Channel) -> bytes:
        """Return the id of the cluster that opens a stream for reads there."""
        token = await self._identity.access_token(channel)
        call, opened = await open_stream(channel, token, 0)
        call.cancel()
        return opened.cluster_id
