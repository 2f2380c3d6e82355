"""Runs in the client's pod: creates streams one after the other, and looks for them in the end.

Each line that it prints is a document: one when the first stream was acknowledged, and one at the
end, once the file in its argument exists.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import viewstamp
from viewstamp.client import Client

PAUSE_S = 0.02
# Longer than any change of the cluster may take on a busy machine.
CALL_TIMEOUT_S = 300.0


async def main(prefix: str, password: str, stop: str) -> None:
    """Create streams until the file is there; print what became of them."""
    client = await viewstamp.connect(
        os.environ["VIEWSTAMP_ADDRESS"].split(","),
        username="root",
        password=password,
        tls_ca=os.environ.get("VIEWSTAMP_TLS_CA"),
        timeout_s=CALL_TIMEOUT_S,
    )
    async with client:
        names, slowest_ms = await _create(client, prefix, Path(stop))
        there = {one.name async for one in client.streams.list()}
    missing = sorted(set(names) - there)
    print(json.dumps({"created": len(names), "missing": missing, "slowest_ms": slowest_ms}))


async def _create(client: Client, prefix: str, stop: Path) -> tuple[list[str], int]:
    names: list[str] = []
    slowest_ms = 0
    while not stop.exists():
        name = f"{prefix}-{len(names)}"
        began = time.monotonic()
        # A command takes effect once, whatever it met on its way: a refusal ends the program.
        await client.streams.create(name)
        slowest_ms = max(slowest_ms, round(1000 * (time.monotonic() - began)))
        names.append(name)
        if len(names) == 1:
            print(json.dumps({"began": name}), flush=True)
        await asyncio.sleep(PAUSE_S)
    return names, slowest_ms


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
