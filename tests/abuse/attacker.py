"""A process of hostile callers: `python -m tests.abuse.attacker ADDRESSES KIND...`.

It attacks until a line comes on stdin, or stdin ends, and writes its counts as lines of JSON on
stdout, one a second and one at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Final

from tests.abuse import scene
from tests.abuse.attacks import KINDS
from tests.abuse.hostile import Hostile
from tests.abuse.tally import Tally

# The cluster and the honest caller get the machine's processors first: in the field, attackers
# bring their own.
NICENESS: Final = 19
# 127.0.0.1 is the honest caller's.
SOURCES: Final = "127.0.1.{}"
REPORT_S: Final = 1.0
STOP_S: Final = 10.0


async def attack(addresses: Sequence[str], kinds: Sequence[str]) -> None:
    """Attack until stdin says stop."""
    stopping = asyncio.Event()
    tallies = {kind: Tally() for kind in kinds}
    running = [
        asyncio.create_task(_attack(addresses, kind, tallies[kind], stopping)) for kind in kinds
    ]
    reporter = asyncio.create_task(_report(tallies))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    stopping.set()
    await asyncio.wait(running, timeout=STOP_S)
    for task in (*running, reporter):
        task.cancel()
    for result in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    _write(tallies)


async def _attack(
    addresses: Sequence[str], kind: str, tally: Tally, stopping: asyncio.Event
) -> None:
    found = KINDS[kind]
    source = SOURCES.format(list(KINDS).index(kind) + 2)
    hostile = Hostile(addresses, found.username, scene.PASSWORD, tally, stopping, source)
    try:
        await hostile.begin()
        while not stopping.is_set():
            try:
                await found.attack(hostile)
            except TimeoutError:  # this login is not answered any more: the caller begins again
                tally.answers["no answer in time"] += 1
    finally:
        await hostile.close()


async def _report(tallies: dict[str, Tally]) -> None:
    while True:
        await asyncio.sleep(REPORT_S)
        _write(tallies)


def _write(tallies: dict[str, Tally]) -> None:
    print(json.dumps({kind: tally.as_dict() for kind, tally in tallies.items()}), flush=True)


if __name__ == "__main__":
    os.nice(NICENESS)
    asyncio.run(attack(sys.argv[1].split(","), sys.argv[2:]))
