"""Measures what watchers cost those who write, beside etcd: prints one JSON object.

`python -m benchmarks.watchers [--replicas N] [--rounds N] [--seconds S]`. Both
systems are started here, on loopback, anew for each round. Each load is measured without watchers
and with them, in turns, every other round in reverse; the ratios are those of one round. Watchers
are a process of their own on the same machine, with a connection each, and both systems' watchers
use the same client. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks import etcd_client as etcd
from benchmarks.commands import ETCD_PREFIX, CommandBench, both, machine, versions
from benchmarks.load_target import WATCHED, WATCHED_KEYS, answered, key_name
from benchmarks.telemetry import interval_of
from viewstamp import transports
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import connect
from viewstamp.client.identifiers import identifier
from viewstamp.limits import ROOT_USERNAME

WATCHERS_OF_EVERYTHING: Final = 10
ROUNDS: Final = 5
SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who watches: how many, and whether each watches everything or a key of its own."""

    name: str
    watchers: int = WATCHED_KEYS
    everything: bool = False


QUIET: Final = Crowd("watch what nobody changes")
CONCERNED: Final = Crowd("each change is shown to one")
EVERYTHING: Final = Crowd("each change is shown to ten", WATCHERS_OF_EVERYTHING, everything=True)
# Which loads are measured beside which watchers.
COMPARED: Final[tuple[tuple[str, Crowd], ...]] = (
    ("create_unary", QUIET),
    ("create_concurrent", QUIET),
    ("update_unary", CONCERNED),
    ("create_unary", EVERYTHING),
    ("etcd_put_concurrent", QUIET),
    ("etcd_put_over", CONCERNED),
    ("etcd_put_concurrent", EVERYTHING),
)


class WatchersBench:
    """Both systems while they run, and how to watch them."""

    def __init__(self, bench: CommandBench, options: argparse.Namespace) -> None:
        self.bench = bench
        self._options = options

    async def prepare(self) -> None:
        """Create what is going to be watched, in both systems."""
        pair = self.bench.pair
        password = pair.password_file.read_text().strip()
        async with await connect(pair.address, username=ROOT_USERNAME, password=password) as client:
            await client.streams.create(WATCHED)
            made = await client.batch(
                streams_pb2.CreateTopicRequest(stream=identifier(WATCHED), name=key_name(number))
                for number in range(WATCHED_KEYS)
            )
            for result in made:
                answered(result)
        if pair.etcd is not None:
            peer = etcd.EtcdClient(pair.etcd.address)
            for number in range(WATCHED_KEYS):
                await peer.put(etcd.PutRequest(key=key_name(number).encode(), value=b""))
            await peer.close()

    async def compare(self, workload: str, crowd: Crowd, is_reversed: bool) -> dict[str, Any]:
        """Measure a load without watchers and with them."""
        found: dict[str, Any] = {}
        for name in ("without", "with")[:: -1 if is_reversed else 1]:
            if name == "without":
                found[name] = await self.bench.measure(workload)
                continue
            async with self._watching(workload.startswith(ETCD_PREFIX), crowd) as shown:
                found[name] = await self.bench.measure(workload)
            found["shown"] = shown
            _check_shown(workload, crowd, found, self._options.seconds)
        found["ratio"] = found["with"]["commands_per_s"] / found["without"]["commands_per_s"]
        return found

    @asynccontextmanager
    async def _watching(self, is_etcd: bool, crowd: Crowd) -> AsyncIterator[dict[str, Any]]:
        """Watch during the block; what was shown is known after it. Raises RuntimeError."""
        process = await asyncio.create_subprocess_exec(
            *self._command(is_etcd, crowd),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None, "it has a pipe"
        assert process.stdout is not None, "it has a pipe"
        shown: dict[str, Any] = {}
        try:
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError("the watches could not be opened, see above")
            yield shown
            process.stdin.close()
            output = await process.stdout.read()
            if await process.wait():
                raise RuntimeError("the watchers failed, see above")
            shown.update(json.loads(output))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _command(self, is_etcd: bool, crowd: Crowd) -> list[str]:
        pair, count = self.bench.pair, crowd.watchers
        command = [sys.executable, "-m", "benchmarks.watch_load"]
        if is_etcd:
            assert pair.etcd is not None, "measured without etcd"
            command += ["etcd", "--address", pair.etcd.address]
        else:
            password = str(pair.password_file)
            command += ["viewstamp", "--address", pair.address, "--password-file", password]
        command += ["--watchers", str(count), "--connections", str(count)]
        return command + ["--everything"] * crowd.everything


def _check_shown(workload: str, crowd: Crowd, found: Mapping[str, Any], seconds: float) -> None:
    """Raise RuntimeError if watchers were shown less than what was counted as done."""
    commands = int(found["with"]["commands_per_s"] * seconds)
    copies = crowd.watchers if crowd.everything else int(crowd is CONCERNED)
    if found["shown"]["changes"] < commands * copies:
        raise RuntimeError(f"{workload}: {commands} commands, and watchers saw {found}")


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure in rounds, with new systems for each, and return the result."""
    compared = [each for each in COMPARED if each[0] in options.only]
    rounds: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        async with both(options) as bench:
            crowds = WatchersBench(bench, options)
            await crowds.prepare()
            for workload, crowd in compared:
                found = await crowds.compare(workload, crowd, bool(number % 2))
                rounds.setdefault(f"{workload}, {crowd.name}", []).append(found)
                print(f"round {number + 1} {workload}: {found}", file=sys.stderr, flush=True)
            about = {"machine": machine(), "versions": versions(bench.pair.etcd)}
    return {"medians": summary(rounds), "rounds": rounds} | about


def summary(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the medians over the rounds, and how sure the ratio is (90 %)."""
    return {
        name: {
            "ratio": round(median(each["ratio"] for each in measured), 3),
            "ratio_interval": [
                round(end, 3) for end in interval_of([each["ratio"] for each in measured])
            ],
            **{
                f"commands_per_s_{mode}": median(each[mode]["commands_per_s"] for each in measured)
                for mode in ("without", "with")
            },
        }
        for name, measured in rounds.items()
    }


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watchers", description=__doc__)
    add = parser.add_argument
    add("--replicas", type=int, choices=(1, 3), default=1, help="and as many nodes of etcd")
    add("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    add("--seconds", type=float, default=SECONDS, help="of each measurement, default: %(default)s")
    add("--without-etcd", action="store_true", help="Viewstamp alone, without its comparisons")
    transports.add_argument(parser, transports.chosen())
    # A few deletions of thousands of topics would be more than a service keeps for watches.
    parser.set_defaults(request_bytes=0, leave=True)
    options = parser.parse_args()
    os.environ[transports.VARIABLE] = options.transport  # of all processes that are started
    options.only = sorted({workload for workload, _ in COMPARED})
    if options.without_etcd:
        options.only = [name for name in options.only if not name.startswith(ETCD_PREFIX)]
    return options


def main() -> int:
    """Measure and print."""
    print(json.dumps(asyncio.run(run(parse())), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
