"""Tasks that belong together."""

from __future__ import annotations

import asyncio


async def first_to_end(*tasks: asyncio.Task[None]) -> None:
    """Wait for the first task, end the others, and raise what it raised."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
