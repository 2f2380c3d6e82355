"""Measures the cost of one gRPC message by event loop and poller: prints one JSON object.

`python -m benchmarks.messages [--rounds N] [--messages N]`. A client and a server, each a process,
send a message of 500 bytes to and fro on one stream over a unix socket, as the coordinator and its
services do, one at a time. Each round measures every combination once. Figures are microseconds of
a round trip: from sending to the answer, and CPU of both processes. Medians of the rounds; ratios
to `asyncio, default poller` are of each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from statistics import median
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.commands import machine
from viewstamp import event_loop

BYTES: Final = 500
ROUNDS: Final = 5
MESSAGES: Final = 5_000
WARM_UP_MESSAGES: Final = 500
STOP_GRACE_S: Final = 5.0
PATH: Final = "/Echo/Echo"
POLLERS: Final = {"default poller": "", "classic poller": event_loop.CLASSIC_POLLER}
LOOPS: Final = ("asyncio", "uvloop")
BASE: Final = "asyncio, default poller"


def cpu_s() -> float:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def serve(address: str) -> None:
    """Send everything back until stdin is closed; print a line at first, the CPU time at last."""

    async def echo(_: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    handler: Any = echo
    methods: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(handler)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", methods),))
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    begun_s = cpu_s()
    print("go", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(cpu_s() - begun_s, flush=True)
    await server.stop(STOP_GRACE_S)


async def send(address: str, messages: int, loop: str) -> None:
    """Send messages to and fro; print seconds, and seconds of CPU of both sides."""
    command = [sys.executable, "-m", "benchmarks.messages", "--serve", address, "--loop", loop]
    server = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    async def told() -> bytes:
        assert server.stdout is not None
        return await server.stdout.readline()

    async def go_on() -> bytes:
        assert server.stdin is not None
        server.stdin.write(b"\n")
        return await told()

    await told()
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(PATH)()
        message = bytes(BYTES)

        async def to_and_fro(count: int) -> None:
            for _ in range(count):
                await call.write(message)
                await call.read()

        await to_and_fro(WARM_UP_MESSAGES)
        await go_on()
        begun_s, begun_cpu_s = time.perf_counter(), cpu_s()
        await to_and_fro(messages)
        taken_s, own_s = time.perf_counter() - begun_s, cpu_s() - begun_cpu_s
        cpu_both_s = own_s + float(await go_on())
        await call.done_writing()
        await call.read()
    await server.wait()
    print(json.dumps([taken_s, cpu_both_s]))


def measure(loop: str, poller: str, messages: int) -> dict[str, float]:
    """Measure one combination, in processes of its own."""
    with tempfile.TemporaryDirectory(prefix="vs") as directory:
        address = f"unix:{Path(directory) / 'echo'}"
        command = [sys.executable, "-m", "benchmarks.messages", "--send", address]
        command += ["--loop", loop, "--messages", str(messages)]
        environment = os.environ | {event_loop.EXPERIMENTS_VARIABLE: POLLERS[poller]}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    taken_s, cpu_both_s = json.loads(done.stdout)
    return {"round_trip_us": taken_s / messages * 1e6, "cpu_us": cpu_both_s / messages * 1e6}


def compare(rounds: int, messages: int) -> dict[str, Any]:
    """Measure everything in turns."""
    taken: list[dict[str, dict[str, float]]] = []
    for number in range(rounds):
        taken.append(
            {
                f"{loop}, {poller}": measure(loop, poller, messages)
                for loop in LOOPS
                for poller in POLLERS
            }
        )
        print(number + 1, taken[-1], file=sys.stderr, flush=True)
    result: dict[str, Any] = {"machine": machine()}
    for name in taken[0]:
        row: dict[str, Any] = {}
        for figure in ("round_trip_us", "cpu_us"):
            row[figure] = round(median(one[name][figure] for one in taken), 1)
            ratios = [one[name][figure] / one[BASE][figure] for one in taken]
            row[f"{figure}_ratio"] = round(median(ratios), 3)
        result[name] = row
    return result


def run_on(loop: str, main: Coroutine[Any, Any, None]) -> None:
    """Run on one of the loops."""
    if loop == "uvloop":
        event_loop.run(main)
    else:
        asyncio.run(main)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.messages", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--serve", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--send", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--loop", choices=LOOPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run_on(options.loop, serve(options.serve))
    elif options.send:
        run_on(options.loop, send(options.send, options.messages, options.loop))
    else:
        print(json.dumps(compare(options.rounds, options.messages), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
