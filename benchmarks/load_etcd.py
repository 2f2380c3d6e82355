"""Loads of etcd: puts, transactions and gets, by the leanest client and by grpc's own."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

from benchmarks import etcd_client as etcd
from benchmarks.load_target import (
    CALLERS,
    CONNECTIONS,
    NUMBER_DIGITS,
    READ_KEYS,
    TRANSACTION_PUTS,
    VALUE_BYTES,
    WATCHED_KEYS,
    Copies,
    LoadTarget,
    by_callers,
    key_name,
    one_after_another,
)
from benchmarks.wire import CallShape, Samples, header_block, keep_in_flight


class Puts:
    """Makes puts of new keys."""

    def __init__(self) -> None:
        self._numbers = count()
        self._value = os.urandom(VALUE_BYTES)
        # Joined messages form one message, so a transaction of one put is also a part of a larger
        # one.
        put = etcd.RequestOp(request_put=self._put(0))
        self._copies = Copies(etcd.TxnRequest(success=[put]).SerializeToString())

    def request(self) -> Any:
        """Return the next put."""
        return self._put(next(self._numbers))

    def encoded(self) -> bytes:
        """Return the next put, encoded."""
        encoded: bytes = self.request().SerializeToString()
        return encoded

    def encoded_transaction(self) -> bytes:
        """Return a transaction of the next 128 puts, encoded."""
        first = next(self._numbers)
        self._numbers = count(first + TRANSACTION_PUTS)
        return self._copies.numbered(first, TRANSACTION_PUTS)

    def _put(self, number: int) -> Any:
        key = f"load-{os.getpid()}-{number:0{NUMBER_DIGITS}}".encode()
        return etcd.PutRequest(key=key, value=self._value)


async def put_sequential(target: LoadTarget) -> Samples:
    """One caller, through grpc's own client."""
    puts, client = Puts(), etcd.EtcdClient(target.address)
    samples = target.samples()
    await one_after_another(samples, lambda: client.put(puts.request()))
    await client.close()
    return samples


async def put_concurrent(target: LoadTarget) -> Samples:
    """256 puts in flight."""
    block = header_block(etcd.path("Put"), target.address)
    samples, shape = target.samples(), CallShape(CALLERS, CONNECTIONS)
    await keep_in_flight(target.address, block, Puts().encoded, shape, samples)
    return samples


async def put_over(target: LoadTarget) -> Samples:
    """256 puts in flight, of the same 1,000 keys over and over."""
    block = header_block(etcd.path("Put"), target.address)
    value, numbers = os.urandom(VALUE_BYTES), count()
    bodies = [
        etcd.PutRequest(key=key_name(number).encode(), value=value).SerializeToString()
        for number in range(WATCHED_KEYS)
    ]
    samples, shape = target.samples(), CallShape(CALLERS, CONNECTIONS)
    await keep_in_flight(
        target.address, block, lambda: bodies[next(numbers) % WATCHED_KEYS], shape, samples
    )
    return samples


async def put_by_clients(target: LoadTarget) -> Samples:
    """256 callers through grpc's own client, as an application in Python would."""
    puts, client = Puts(), etcd.EtcdClient(target.address)
    samples = target.samples()
    await by_callers(samples, CALLERS, lambda: client.put(puts.request()))
    await client.close()
    return samples


async def put_transactions(target: LoadTarget) -> Samples:
    """Transactions of 128 puts, 256 in flight."""
    block = header_block(etcd.path("Txn"), target.address)
    samples, shape = target.samples(), CallShape(CALLERS, CONNECTIONS, TRANSACTION_PUTS)
    await keep_in_flight(target.address, block, Puts().encoded_transaction, shape, samples)
    return samples


async def _ranges(client: etcd.EtcdClient) -> list[Any]:
    """Put keys, and return requests that read one each."""
    puts = Puts()
    made = [puts.request() for _ in range(READ_KEYS)]
    for request in made:
        await client.put(request)
    return [etcd.RangeRequest(key=request.key) for request in made]


async def get_by_clients(target: LoadTarget) -> Samples:
    """256 callers of linearizable gets through grpc's own client."""
    client, numbers = etcd.EtcdClient(target.address), count()
    ranges = await _ranges(client)
    samples = target.samples()
    await by_callers(samples, CALLERS, lambda: client.range(ranges[next(numbers) % READ_KEYS]))
    await client.close()
    return samples


async def get_concurrent(target: LoadTarget) -> Samples:
    """256 linearizable gets in flight."""
    client, numbers = etcd.EtcdClient(target.address), count()
    bodies = [request.SerializeToString() for request in await _ranges(client)]
    await client.close()
    block = header_block(etcd.path("Range"), target.address)
    samples, shape = target.samples(), CallShape(CALLERS, CONNECTIONS)
    await keep_in_flight(
        target.address, block, lambda: bodies[next(numbers) % READ_KEYS], shape, samples
    )
    return samples
