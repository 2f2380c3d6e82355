"""Read with the consistency that a reader needs: ADDRESS PASSWORD_FILE.

A linearizable read includes every acknowledged command. `at_least` includes a known revision, on
any replica, without asking the primary. A stale read never waits.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import viewstamp
from viewstamp.client import LINEARIZABLE, STALE, at_least


async def main(address: str, password_file: str) -> None:
    """Write, then read the same entity at three levels."""
    password = Path(password_file).read_text().strip()
    async with await viewstamp.connect(address, username="root", password=password) as client:
        written = (await client.streams.create("levels")).header.revision
        levels = {"linearizable": LINEARIZABLE, "at least": at_least(written), "stale": STALE}
        for name, level in levels.items():
            found = [stream.name async for stream in client.streams.list(consistency=level)]
            print(f"{name}: {'levels' in found}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
