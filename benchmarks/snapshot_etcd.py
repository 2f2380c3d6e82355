"""Measures an etcd with a key per partition: its snapshot, its restart and its memory."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

import grpc.aio
import psutil

from benchmarks import etcd_client
from benchmarks.etcd_server import EtcdServer
from benchmarks.load_etcd import Puts
from benchmarks.load_target import TRANSACTION_PUTS
from benchmarks.targets import Figures

POLL_S: Final = 0.01
RESTART_TIMEOUT_S: Final = 120.0
TRANSACTIONS_AT_ONCE: Final = 64
MB: Final = 1e6

Rounds = dict[str, list[Figures]]


async def measure_etcd(directory: Path, keys: int, rounds: int) -> tuple[Rounds, EtcdServer]:
    """Fill an etcd, save its snapshots and restart it."""
    found: Rounds = {}

    def add(name: str, figures: Figures) -> None:
        found.setdefault(name, []).append(figures)
        tell(name, figures)

    async with EtcdServer(directory / "etcd") as etcd:
        key = await fill_etcd(etcd.address, keys)
        add("etcd_memory", {"total_mb": resident_mb(etcd.pid)})
        for number in range(rounds):
            add("etcd_snapshot", await save_etcd(etcd.address, directory / f"saved-{number}"))
        for _ in range(rounds):
            started = time.perf_counter()
            await etcd.kill_and_start()
            await until_etcd_answers(etcd.address, key)
            add("etcd_restart", {"first_read_s": round(time.perf_counter() - started, 3)})
        add("etcd_memory_after_restart", {"total_mb": resident_mb(etcd.pid)})
    return found, etcd


async def fill_etcd(address: str, keys: int) -> bytes:
    """Put so many keys with values of 256 bytes; return one of the keys."""
    puts, client = Puts(), etcd_client.EtcdClient(address)
    left = -(-keys // TRANSACTION_PUTS)
    first = etcd_client.TxnRequest.FromString(puts.encoded_transaction())
    await client.transact(first)
    left -= 1

    async def putter() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await client.transact_encoded(puts.encoded_transaction())

    await asyncio.gather(*(putter() for _ in range(TRANSACTIONS_AT_ONCE)))
    await client.close()
    key: bytes = first.success[0].request_put.key
    return key


async def save_etcd(address: str, path: Path) -> Figures:
    """Save a snapshot as `etcdctl snapshot save` does: streamed into a file, and synced."""
    client = etcd_client.EtcdClient(address)
    started = time.perf_counter()
    with path.open("wb") as file:
        async for response in client.snapshot(etcd_client.SnapshotRequest()):
            file.write(response.blob)
        file.flush()
        os.fsync(file.fileno())
        size_bytes = file.tell()
    seconds = time.perf_counter() - started
    await client.close()
    return {"seconds": round(seconds, 3), "bytes": size_bytes}


async def until_etcd_answers(address: str, key: bytes) -> None:
    """Read linearizably until there is an answer. Raises RuntimeError if the key is gone."""
    async with asyncio.timeout(RESTART_TIMEOUT_S):
        while True:
            client = etcd_client.EtcdClient(address)
            try:
                answer = await client.range(etcd_client.RangeRequest(key=key))
            except grpc.aio.AioRpcError:
                await asyncio.sleep(POLL_S)
                continue
            finally:
                await client.close()
            if not answer.kvs:
                raise RuntimeError(f"etcd has lost {key!r}")
            return


def resident_mb(pid: int) -> float:
    """Return the memory of a process that is in RAM, in MB."""
    return round(psutil.Process(pid).memory_info().rss / MB, 1)


def family_mb(pid: int) -> float:
    """Return the memory of a process and of those that it has started, in RAM, in MB."""
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return round(sum(map(resident_mb, family)), 1)


def tell(name: str, figures: Figures) -> None:
    """Print figures to stderr."""
    print(f"{name}: {json.dumps(figures)}", file=sys.stderr, flush=True)
