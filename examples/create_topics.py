"""Create a stream and its topics, concurrently and repeatably: ADDRESS PASSWORD_FILE.

Concurrent calls share messages to the cluster. A second run finds the entities and changes nothing.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import viewstamp
from viewstamp.client import Client, Refusal

TOPICS = {"payments": 12, "refunds": 4, "invoices": 6}


async def ensure_stream(client: Client, name: str) -> None:
    """Create a stream; one that exists is fine."""
    try:
        await client.streams.create(name)
    except Refusal as refusal:
        if refusal.name != "STREAM_EXISTS":
            raise


async def ensure_topic(client: Client, stream: str, name: str, partitions: int) -> str:
    """Create a topic and return what happened to it."""
    try:
        created = await client.topics.create(stream, name, partitions_count=partitions)
        return f"{name}: created at revision {created.header.revision}"
    except Refusal as refusal:
        if refusal.name != "TOPIC_EXISTS":
            raise
        return f"{name}: exists"


async def main(address: str, password_file: str) -> None:
    """Create everything and say what was done."""
    password = Path(password_file).read_text().strip()
    async with await viewstamp.connect(address, username="root", password=password) as client:
        await ensure_stream(client, "shop")
        wanted = [ensure_topic(client, "shop", name, count) for name, count in TOPICS.items()]
        for line in await asyncio.gather(*wanted):
            print(line)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
