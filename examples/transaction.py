"""Change several domains at once, or nothing: ADDRESS PASSWORD_FILE.

All commands of a transaction take effect at one revision. If one is refused, none takes effect.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import viewstamp
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.consumer_groups.v1.consumer_groups_service_pb2 import CreateConsumerGroupRequest
from viewstamp.api.streams.v1.streams_service_pb2 import CreateStreamRequest, CreateTopicRequest
from viewstamp.client import Refusal

STREAM = Identifier(name="ledger")
TOPIC = Identifier(name="entries")
COMMANDS = (
    CreateStreamRequest(name="ledger"),
    CreateTopicRequest(stream=STREAM, name="entries", partitions_count=3),
    CreateConsumerGroupRequest(stream=STREAM, topic=TOPIC, name="auditors"),
)


async def main(address: str, password_file: str) -> None:
    """Apply a good transaction, then one whose last command is refused."""
    password = Path(password_file).read_text().strip()
    async with await viewstamp.connect(address, username="root", password=password) as client:
        responses = await client.transact(COMMANDS)
        revisions = {response.header.revision for response in responses}
        print(f"{len(responses)} commands at {len(revisions)} revision")
        try:
            await client.transact([CreateStreamRequest(name="archive"), COMMANDS[0]])
        except Refusal as refusal:
            print(f"refused: {refusal.name}, part {refusal.details['part']}")
        names = [stream.name async for stream in client.streams.list()]
        print("archive exists:", "archive" in names)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
