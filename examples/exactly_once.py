"""Retry a command exactly once, with a session of one's own: ADDRESS PASSWORD_FILE.

The client library does this by itself. This example shows how: each request has a number, and the
cluster keeps the reply of a number. A repeated number gets the same reply, byte for byte.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from viewstamp.api.streams.v1.streams_service_pb2 import CreateStreamRequest
from viewstamp.api.submit.v1.submit_service_pb2 import Span
from viewstamp.api.users.v1.users_service_pb2 import LoginRequest
from viewstamp.client import Endpoint, RawSession, unary
from viewstamp.framing import frame

# The code of StreamsService.CreateStream; the API reference lists the codes.
CREATE_STREAM = 200


async def log_in(endpoint: Endpoint, password: str) -> str:
    """Return an access token for root."""
    channel = endpoint.open()
    try:
        answer = await unary(channel, LoginRequest(username="root", password=password))
    finally:
        await channel.close()
    return str(answer.access_token)


async def main(address: str, password_file: str) -> None:
    """Send a command, lose the connection, and send it again under the same number."""
    endpoint = Endpoint(address)
    token = await log_in(endpoint, Path(password_file).read_text().strip())
    create = CreateStreamRequest(name="once").SerializeToString()
    spans = [Span(code=CREATE_STREAM, count=1, items=frame(create))]
    async with RawSession(endpoint, token) as session:
        first = await session.submit_request(1, 0, spans)
    async with RawSession(endpoint, token, session_id=session.session_id) as again:
        print("last number that the cluster knows:", again.last_request_number)
        second = await again.submit_request(1, 0, spans)
    print("same reply:", first.message.command == second.message.command)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
