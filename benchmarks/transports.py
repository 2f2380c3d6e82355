"""Measures what a gRPC call costs on our transport and on the library's: prints one JSON object.

`python -m benchmarks.transports [--rounds N] [--calls N]`. A server and a client, each a process
with uvloop, exchange messages of 100 bytes: unary calls one at a time and 256 at once, these also
with deadlines and traces of their own, and messages of one stream to and fro, 16 under way. Each
round measures every pair of transports once, in turn. Figures are microseconds of processor time
for a call, of the server and of the client, and the wall time of a call; medians of the rounds.
Ratios are of each round, to the library on both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from statistics import median
from typing import Any, Final

import grpc

from benchmarks.commands import machine
from viewstamp import event_loop
from viewstamp.grpc_transport import GrpcTransport, Transport
from viewstamp.wire.transport import WireTransport

ROUNDS: Final = 3
CALLS: Final = 4_000
WARM_UP_CALLS: Final = 300
BYTES: Final = 100
AT_ONCE: Final = 256
UNDER_WAY: Final = 16
STOP_GRACE_S: Final = 5.0
TIMEOUT_S: Final = 30.0
TRANSPORTS: Final[Mapping[str, Transport]] = {"grpcio": GrpcTransport(), "wire": WireTransport()}
PAIRS: Final = (("grpcio", "grpcio"), ("grpcio", "wire"), ("wire", "grpcio"), ("wire", "wire"))
BASE: Final = "grpcio to grpcio"
OPTIONS: Final = (("grpc.max_concurrent_streams", 2 * AT_ONCE),)


def cpu_s() -> float:
    """Return the processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def serve(transport: str) -> None:
    """Send everything back until stdin is closed; tell the processor time at each line."""

    async def echo(request: bytes, _: Any) -> bytes:
        return request

    async def chat(_: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    unary: Any = echo
    streamed: Any = chat
    methods: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(unary),
        "Chat": grpc.stream_stream_rpc_method_handler(streamed),
    }
    server = TRANSPORTS[transport].server(OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        print(cpu_s(), flush=True)
    await server.stop(STOP_GRACE_S)


async def one_at_a_time(channel: Any, calls: int) -> None:
    """Call again and again."""
    echo = channel.unary_unary("/Echo/Echo")
    for _ in range(calls):
        await echo(bytes(BYTES))


async def many_at_once(channel: Any, calls: int) -> None:
    """Have as many calls under way as callers of a busy gateway."""
    echo = channel.unary_unary("/Echo/Echo")

    async def caller() -> None:
        for _ in range(calls // AT_ONCE):
            await echo(bytes(BYTES))

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))


async def fresh_fields(channel: Any, calls: int) -> None:
    """Do the same with a deadline and a trace of its own for each call."""
    echo = channel.unary_unary("/Echo/Echo")

    async def caller(number: int) -> None:
        for count in range(calls // AT_ONCE):
            trace = (("traceparent", f"00-{number:032x}-{count + 1:016x}-01"),)
            await echo(bytes(BYTES), timeout=TIMEOUT_S + number / AT_ONCE, metadata=trace)

    await asyncio.gather(*(caller(number) for number in range(AT_ONCE)))


async def streamed(channel: Any, calls: int) -> None:
    """Keep messages of one stream under way."""
    call = channel.stream_stream("/Echo/Chat")()
    for _ in range(UNDER_WAY):
        await call.write(bytes(BYTES))
    for _ in range(calls):
        await call.read()
        await call.write(bytes(BYTES))
    call.cancel()


WORKLOADS: Final[Mapping[str, Callable[[Any, int], Coroutine[Any, Any, None]]]] = {
    "one at a time": one_at_a_time,
    "256 at once": many_at_once,
    "256 at once, fresh fields": fresh_fields,
    "stream, 16 under way": streamed,
}


async def send(transport: str, server: str, calls: int) -> None:
    """Measure all workloads against a server in a process of its own; print them."""
    command = [sys.executable, "-m", "benchmarks.transports", "--serve", server]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    address = f"127.0.0.1:{int(await process.stdout.readline())}"

    async def server_cpu_s() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        return float(await process.stdout.readline())

    measured = {}
    channel: Any = TRANSPORTS[transport].channel(address, OPTIONS, None)
    for name, workload in WORKLOADS.items():
        await workload(channel, WARM_UP_CALLS)
        begun = time.perf_counter(), cpu_s(), await server_cpu_s()
        await workload(channel, calls)
        ended = time.perf_counter(), cpu_s(), await server_cpu_s()
        wall_s, client_s, served_s = (
            after - before for before, after in zip(begun, ended, strict=True)
        )
        each_us = 1_000_000 / calls
        measured[name] = {
            "server_us": served_s * each_us,
            "client_us": client_s * each_us,
            "wall_us": wall_s * each_us,
        }
    await channel.close()
    process.stdin.close()
    await process.wait()
    print(json.dumps(measured))


def measure(client: str, server: str, calls: int) -> dict[str, dict[str, float]]:
    """Measure one pair, in processes of its own."""
    command = [sys.executable, "-m", "benchmarks.transports", "--send", client, "--to", server]
    done = subprocess.run(
        [*command, "--calls", str(calls)], stdout=subprocess.PIPE, check=True, text=True
    )
    measured: dict[str, dict[str, float]] = json.loads(done.stdout)
    return measured


def summary(rounds: list[dict[str, dict[str, dict[str, float]]]]) -> dict[str, Any]:
    """Return medians, and ratios to the library on both sides."""
    result: dict[str, Any] = {}
    for pair in rounds[0]:
        for workload in WORKLOADS:
            figures = [each[pair][workload] for each in rounds]
            row = {key: round(median(each[key] for each in figures), 1) for key in figures[0]}
            base = [each[BASE][workload]["server_us"] for each in rounds]
            ratios = [one / each["server_us"] for one, each in zip(base, figures, strict=True)]
            row["server_times_less"] = round(median(ratios), 2)
            result.setdefault(workload, {})[pair] = row
    return result


def main() -> None:
    """Measure, or be one side of a measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transports", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--serve", choices=TRANSPORTS, help=argparse.SUPPRESS)
    parser.add_argument("--send", choices=TRANSPORTS, help=argparse.SUPPRESS)
    parser.add_argument("--to", choices=TRANSPORTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        event_loop.run(serve(chosen.serve))
    elif chosen.send is not None:
        event_loop.run(send(chosen.send, chosen.to, chosen.calls))
    else:
        rounds = [
            {
                f"{client} to {server}": measure(client, server, chosen.calls)
                for client, server in PAIRS
            }
            for _ in range(chosen.rounds)
        ]
        print(json.dumps({"machine": machine(), "medians": summary(rounds)}, indent=2))


if __name__ == "__main__":
    event_loop.choose_classic_poller()
    main()
