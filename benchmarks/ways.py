"""Prints as JSON what a CreateTopic and a SnapshotDurable cross, and what the driver only forwards.

`python -m benchmarks.ways`. One replica and its services run in this process. A file counts if a
function of it is called between the request and its answer, in every one of several commands, so
that functions that run beside a command by chance do not count. A relay of a SnapshotDurable is a
call that is open between the listener, which has decoded the message, and the orchestrator. Nothing
is timed.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, Final

import grpc.aio

from coordinator.app.composition import Coordinator
from coordinator.app.config import parse
from coordinator.peers.codec import ROOT_BYTES, Encoder
from coordinator.peers.listener import Listener
from coordinator.peers.messages import SnapshotDurableMessage
from coordinator.replica.data_directory import DirectoryOptions, open_replica
from coordinator.snapshot.orchestrator import LocalSnapshotOrchestrator
from services.runtime.process import bind
from services.runtime.server import DomainServer, new_server
from testkit.service_domains import all_domains
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.streams.v1.streams_service_pb2_grpc import StreamsServiceStub
from viewstamp.limits import MIB, ROOT_USER_ID
from viewstamp.routing import SERVICE_NAMES
from viewstamp.tokens import sign

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("coordinator", "services", "viewstamp")
DRIVER: Final = "coordinator/replica/driver.py"
KEY, CLUSTER_ID = bytes(32), bytes(range(16))
COMMANDS: Final = 8
FOREVER_US: Final = 2**62
CLOCK_US: Final = 1_000_000
DEADLINE_S: Final = 30
# The most relays of a SnapshotDurable, as docs/adr/0024-short-ways.md promises.
RELAYS_MAX: Final = 2
# The functions in which a SnapshotDurable is decoded and arrives.
DECODED: Final = Listener.take.__code__
ARRIVED: Final = LocalSnapshotOrchestrator.durable_elsewhere.__code__
# A wait that is longer than the work after an answer.
SETTLING_S: Final = 0.3


class WayTrace:
    """Notes the functions that are called while `is_on`, in every thread that begins after it."""

    def __init__(self) -> None:
        self.is_on = False
        self.files: set[str] = set()
        self.entered: Counter[str] = Counter()  # files, from another one
        self._names: dict[str, str] = {}
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def take(self) -> tuple[frozenset[str], Counter[str]]:
        """Return the noted functions, and forget them."""
        files, entered = frozenset(self.files), self.entered
        self.files, self.entered = set(), Counter()
        return files, entered

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_on and event == "call" and (name := self._name(frame)):
            self.files.add(name)
            if frame.f_back is None or self._name(frame.f_back) != name:
                self.entered[name] += 1

    def _name(self, frame: FrameType) -> str:
        """Return the file's path below the repository, empty if it is none of ours."""
        path = frame.f_code.co_filename
        if path not in self._names:
            relative = path.removeprefix(f"{ROOT}/")
            is_ours = relative.startswith(PACKAGES) and not relative.endswith("_pb2.py")
            self._names[path] = relative if is_ours else ""
        return self._names[path]


async def crossed() -> tuple[list[str], int]:
    """Return the files that every CreateTopic crosses, and how often the driver is entered."""
    trace = WayTrace()
    found: list[tuple[frozenset[str], Counter[str]]] = []
    async with serving() as stub:
        metadata = (
            ("authorization", f"Bearer {sign(KEY, CLUSTER_ID, ROOT_USER_ID, 1, FOREVER_US)}"),
        )
        create = streams_pb2.CreateStreamRequest(name="ways")
        await stub.CreateStream(create, metadata=metadata, timeout=DEADLINE_S)
        for number in range(COMMANDS):
            await asyncio.sleep(SETTLING_S)
            request = streams_pb2.CreateTopicRequest(
                stream=common_pb2.Identifier(name="ways"), name=f"t{number}", partitions_count=1
            )
            trace.is_on = True
            await stub.CreateTopic(request, metadata=metadata, timeout=DEADLINE_S)
            trace.is_on = False
            found.append(trace.take())
    files = frozenset.intersection(*(files for files, _ in found))
    return sorted(files), min(entered[DRIVER] for _, entered in found)


async def relays() -> list[str]:
    """Return the functions between the listener and the orchestrator of a SnapshotDurable."""
    found: list[str] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code is not ARRIVED:
            return
        relay = frame.f_back
        while relay is not None and relay.f_code is not DECODED:
            found.insert(0, relay.f_code.co_qualname)
            relay = relay.f_back

    with tempfile.TemporaryDirectory(prefix="vs") as directory:
        coordinator = _one_of_three(Path(directory))
        members = coordinator.members
        assert members is not None, "one of three has peers"
        listener = members.peers.listener
        message = SnapshotDurableMessage(CLUSTER_ID, 1, 1, bytes(ROOT_BYTES), ())
        packet = Encoder(CLUSTER_ID, 1).encode(message).data
        sys.setprofile(called)
        listener.take(1, listener.heard[1], packet)
        sys.setprofile(None)
    return found


def _one_of_three(directory: Path) -> Coordinator:
    """Return a replica that is composed and not started."""
    arguments = [f"--data-directory={directory}", "--listen=127.0.0.1:0", "--replica-count=3"]
    arguments += [f"--service={name}=unix:{directory}/{name}.sock" for name in SERVICE_NAMES]
    arguments += [f"--peer={replica}=127.0.0.1:{replica}" for replica in (1, 2)]
    config = parse([*arguments, "--replica-id=0", "--peer-listen=127.0.0.1:0"])
    options = DirectoryOptions(config.data_directory, 0, 3, cluster_id=CLUSTER_ID)
    return Coordinator(config, open_replica(options), KEY)


@asynccontextmanager
async def serving() -> AsyncIterator[Any]:
    """Run a replica and its services until the block ends; give a stub of streams."""
    domains = all_domains(KEY, lambda: CLOCK_US)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="vs"))
        arguments = [f"--data-directory={directory}/data", "--listen=127.0.0.1:0"]
        for stage, domain in domains.items():
            name = stage.name.lower()
            server, served = new_server(), DomainServer(domain)
            arguments.append(f"--service={name}={bind(server, f'unix:{directory}/{name}.sock')}")
            await served.start(server)
            stack.push_async_callback(served.stop, server)
        config = parse(arguments)
        options = DirectoryOptions(
            config.data_directory, 0, 1, segment_bytes=4 * MIB, cluster_id=CLUSTER_ID
        )
        stop = asyncio.Event()
        running = asyncio.create_task(Coordinator(config, open_replica(options), KEY).run(stop))
        address = await _address(config.data_directory / "run" / "coordinator.json", running)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        yield StreamsServiceStub(channel)
        stop.set()
        await running


async def _address(ready: Path, running: asyncio.Task[None]) -> str:
    while not await asyncio.to_thread(ready.exists):
        await asyncio.sleep(SETTLING_S)
        if running.done():
            running.result()
    return str(json.loads(await asyncio.to_thread(ready.read_text))["address"])


def passed_on(source: str) -> tuple[int, list[str]]:
    """Return the number of methods, and the methods that only forward a call.

    Such a method is a single expression: an attribute of a part, or a call of a part's method with
    its own arguments alone.
    """
    tree = ast.parse(source)
    methods = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.args.args
        and node.args.args[0].arg == "self"
    ]
    return len(methods), [method.name for method in methods if _passes_on(method)]


def _passes_on(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = [statement for statement in method.body if not _is_text(statement)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    value = body[0].value
    if isinstance(value, ast.Await):
        value = value.value
    if isinstance(value, ast.Call):
        given = [*value.args, *(keyword.value for keyword in value.keywords)]
        return _is_of_a_part(value.func) and all(map(_is_chain, given))
    return value is not None and _is_of_a_part(value)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_of_a_part(node: ast.expr) -> bool:
    """Whether it is `self.part.something`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and _is_chain(node)
    )


def _is_chain(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def main() -> None:
    """Count, and print."""
    with redirect_stdout(sys.stderr):  # the replica says there that it is ready
        files, entered = asyncio.run(crossed())
        durable_relays = asyncio.run(relays())
    methods, passing = passed_on((ROOT / DRIVER).read_text())
    figures = {
        "create_topic_files": len(files),
        "by_package": Counter("/".join(file.split("/")[:2]) for file in files),
        "driver_entered": entered,
        "driver_methods": methods,
        "driver_methods_that_pass_on": passing,
        "snapshot_durable_relays": durable_relays,
        "files": files,
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
