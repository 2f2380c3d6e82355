"""Snapshots of a large state on their way to a blank replica: from one peer, and from two.

Three replicas hold the state, and the third one is stopped. A state transfer in this process then
fetches the snapshot in its name, with the code that ships: from the first replica alone, and from
both, in turns. The others are real processes, and a caller changes topics meanwhile. At the end the
third replica itself begins again with an empty disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.size_figures import SizeCaller, memory_of
from benchmarks.snapshot_state import Size, StateTopics, build
from benchmarks.snapshot_turns import take
from benchmarks.targets import Figures
from coordinator import vsr
from coordinator.peers.peers import PeersConfig, fetcher_of
from coordinator.peers.settings import PeerSettings
from coordinator.snapshot.files import SnapshotDirectories, SnapshotFiles
from coordinator.snapshot.transfer import UNKNOWN_CUT_OP, RestartNeeded, StateTransfer
from coordinator.snapshot.transfer_ports import TransferPorts
from coordinator.storage import FileStorage
from testkit.links import LinkedReplicas
from viewstamp import client as library
from viewstamp.cluster.local import COORDINATOR
from viewstamp.cluster.preflight import CLUSTER_ID_FILE, free_address
from viewstamp.format.manifest import decode_manifest
from viewstamp.limits import BOOT_NONCE_BYTES, SNAPSHOT_COPIES

REPLICAS: Final = 3
BLANK: Final = 2
SOURCES: Final = ((0,), (0, 1))
READY_TIMEOUT_S: Final = 900.0
POLL_S: Final = 0.05
ANY_PORT: Final = "127.0.0.1:0"

Add = Callable[[str, Figures], None]


class SizeTransfers:
    """Three replicas at known addresses, started anew for each limit of what peers may send."""

    def __init__(self, directory: Path, arguments: Sequence[str], add: Add) -> None:
        self._directory = directory
        self._arguments = tuple(arguments)
        self._add = add
        self._own = [free_address(ANY_PORT) for _ in range(REPLICAS)]
        self._peers = [free_address(ANY_PORT) for _ in range(REPLICAS)]
        self._size: Size | None = None
        self._stream_ids: tuple[int, ...] = ()

    async def run(self, size: Size, limits: Sequence[int], rounds: int) -> None:
        """Fill the replicas, and measure transfers under each limit, and the blank replica last."""
        for number, limit in enumerate(limits):
            async with AsyncExitStack() as stack:
                replicas, client, topics = await self._begin(stack, size, limit)
                await replicas.replicas[BLANK].stop()
                caller = SizeCaller(client, topics)
                _, quiet = await caller.beside(asyncio.sleep(5))
                self._add(f"quiet_{_words(limit)}", quiet)
                for _ in range(rounds):
                    for sources in SOURCES:
                        figures, beside = await caller.beside(self._transfer(sources))
                        name = f"transfer_from_{len(sources)}_{_words(limit)}"
                        self._add(name, {**figures, **beside})
                if number == len(limits) - 1:
                    await self._blank(replicas, caller)

    async def _begin(
        self, stack: AsyncExitStack, size: Size, limit: int
    ) -> tuple[LinkedReplicas, library.Client, StateTopics]:
        began_s = time.perf_counter()
        arguments = (*self._arguments, f"--peer-snapshot-bytes-per-s={limit}")
        replicas = LinkedReplicas(
            self._directory, self._own, [self._peers] * REPLICAS, arguments=arguments
        )
        await stack.enter_async_context(replicas)
        await replicas.wait_ready(READY_TIMEOUT_S)
        password = replicas.root_password_path.read_text().strip()
        client = await stack.enter_async_context(
            await library.connect(
                replicas.addresses, username="root", password=password, timeout_s=READY_TIMEOUT_S
            )
        )
        if self._stream_ids:
            self._add("restart_of_three", {"seconds": round(time.perf_counter() - began_s, 3)})
            return replicas, client, StateTopics(self._stream_ids, size)
        return replicas, client, await self._fill(replicas, client, size)

    async def _fill(
        self, replicas: LinkedReplicas, client: library.Client, size: Size
    ) -> StateTopics:
        began_s = time.perf_counter()
        topics = await build(client, size)
        self._stream_ids = topics.stream_ids
        self._add("build_of_three", {"seconds": round(time.perf_counter() - began_s, 1)})
        began_s = time.perf_counter()
        await take(client)
        self._add("full_of_three", {"seconds": round(time.perf_counter() - began_s, 3)})
        for number, replica in enumerate(replicas.replicas):
            await _until_adopted(replica.log_path(COORDINATOR))
            self._add(f"memory_of_replica_{number}", memory_of(replica))
        return topics

    async def _transfer(self, sources: Sequence[int]) -> Figures:
        """Fetch the snapshot of these replicas as the blank one, into files of its own."""
        cluster_id = bytes.fromhex((self._directory / CLUSTER_ID_FILE).read_text().strip())
        addresses = {number: self._peers[number] for number in range(REPLICAS) if number != BLANK}
        peers = PeersConfig(
            cluster_id,
            BLANK,
            REPLICAS,
            os.urandom(BOOT_NONCE_BYTES),
            PeerSettings(self._peers[BLANK], addresses, None),
        )
        fetcher = fetcher_of(peers, None)
        manifest = decode_manifest(await fetcher.manifest(sources[0], 0))
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            files = await asyncio.to_thread(_files_in, Path(name), cluster_id)
            ports = TransferPorts(
                fetcher=fetcher,
                replicas=lambda: sources,
                cluster_id=cluster_id,
                held_op=lambda: 0,
                own_cut_op=lambda: 0,
                adopted=lambda: 0,
                record=lambda *_: None,
                say=lambda _: None,
                ended=lambda: None,
            )
            transfer = StateTransfer(ports, files, Path(name) / "transfer")
            target = vsr.SnapshotNeeded(sources[0], manifest.generation, UNKNOWN_CUT_OP)
            began_s = time.perf_counter()
            with suppress(RestartNeeded):
                await transfer.bring(target)
            seconds = time.perf_counter() - began_s
            came = dict(transfer.fetched_from)
            await asyncio.to_thread(files.close)
        shares = {f"bytes_from_{number}": count for number, count in sorted(came.items())}
        return {"seconds": round(seconds, 3), "bytes": sum(came.values()), **shares}

    async def _blank(self, replicas: LinkedReplicas, caller: SizeCaller) -> None:
        """Let the third replica begin with an empty disk; wait until it follows."""
        empty(replicas.replica_directory(BLANK))

        async def until_ready() -> float:
            began_s = time.perf_counter()
            await replicas.replicas[BLANK].start()
            await replicas.replicas[BLANK].wait_ready(READY_TIMEOUT_S)
            return time.perf_counter() - began_s

        seconds, beside = await caller.beside(until_ready())
        transfer = transfer_in(replicas.replicas[BLANK].log_path(COORDINATOR))
        self._add("blank_replica", {"ready_s": round(seconds, 3), **transfer, **beside})


def transfer_in(log: Path) -> Figures:
    """Return the figures of the last state transfer in a log, none if entries were enough."""
    began, done = (_logged(log, f"state transfer {what}") for what in ("began", "done"))
    if not done:
        return {}
    told = done[-1]["fields"]
    return {
        "transfer_s": round(_time_s(done[-1]) - _time_s(began[-1]), 3),
        "bytes": told["fetched_bytes"],
        **{f"bytes_from_{who}": count for who, count in told["fetched_from"].items()},
    }


def empty(directory: Path) -> None:
    """Remove the coordinator's files; the supervisor writes the key anew."""
    for name in ("journal", "snapshots", "transfer", "run"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in ("superblock", "catalog.sqlite"):
        (directory / name).unlink(missing_ok=True)


def _files_in(directory: Path, cluster_id: bytes) -> SnapshotFiles:
    paths = tuple(str(directory / f"copy-{copy}") for copy in range(SNAPSHOT_COPIES))
    return SnapshotFiles(
        FileStorage(),
        SnapshotDirectories(paths, cluster_id, BLANK),
        report=lambda *_: None,
        has_writer_process=True,
    )


async def _until_adopted(log: Path) -> None:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while not _logged(log, "snapshot adopted"):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(POLL_S)


def _logged(log: Path, message: str) -> list[dict[str, Any]]:
    lines = (line for line in log.read_text().splitlines() if f'"{message}' in line)
    return [json.loads(line) for line in lines]


def _time_s(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def _words(limit: int) -> str:
    return f"{limit // 1024}_kib_per_s" if limit else "without_limit"
