"""Hundreds of failing logins do not keep out a user who has the right password."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from tests.abuse.relay import Relay
from tests.processes.credentials import PASSWORD, Door, refusal_of
from tests.processes.processes import ReplicaProcesses, replica, unique
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Endpoint, unary
from viewstamp.errors import reason_name
from viewstamp.limits import LOGIN_FAILURES_PER_ADDRESS_MAX

# The replica is not shared: a failed login counts for a minute.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes-login-flood")]

GUESSERS: Final = 40
ATTEMPTS: Final = 600
FLOOD_TIMEOUT_S: Final = 120
LOGINS: Final = 5
WRONG: Final = reason_name(Reason.REASON_INVALID_CREDENTIALS)
TOO_MANY: Final = reason_name(Reason.REASON_QUOTA_EXCEEDED)
FIRST_SOURCE, SECOND_SOURCE = "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def flooded() -> Iterator[ReplicaProcesses]:
    """A replica on which logins may fail."""
    with replica() as running:
        yield running


class Flood:
    """Guesses passwords of root, of a user and of unknown names, without a pause."""

    def __init__(self, door: Door, username: str) -> None:
        self.door = door
        self.told: Counter[str] = Counter()
        self._username = username
        self._is_enough = asyncio.Event()

    async def guess(self, number: int) -> None:
        """Guess wrong passwords until cancelled."""
        async with Endpoint(self.door.address).open() as channel:
            while True:
                name = ("root", self._username, f"invented {number}")[number % 3]
                request = users_pb2.LoginRequest(username=name, password=f"guess {number}")
                self.told[(await refusal_of(unary(channel, request))).name] += 1
                wrong = self.told[WRONG]
                if self.told.total() >= ATTEMPTS and wrong >= LOGIN_FAILURES_PER_ADDRESS_MAX:
                    self._is_enough.set()
                number += GUESSERS

    async def until_enough(self) -> None:
        """Wait for hundreds of answers, most of which say that there are too many guesses."""
        async with asyncio.timeout(FLOOD_TIMEOUT_S):
            await self._is_enough.wait()
        assert self.told[TOO_MANY] > self.told[WRONG]
        assert set(self.told) == {TOO_MANY, WRONG}, self.told


@asynccontextmanager
async def at(running: ReplicaProcesses, source: str) -> AsyncIterator[Door]:
    """Yield the replica as callers from another address reach it."""
    relay = Relay(running.address, source)
    try:
        yield Door(await relay.start())
    finally:
        await relay.stop()


@asynccontextmanager
async def flood(door: Door, username: str) -> AsyncIterator[Flood]:
    """Run a flood during the block; an error in the flood is raised."""
    made = Flood(door, username)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(made.guess(number)) for number in range(GUESSERS)]
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()


async def new_user(running: ReplicaProcesses) -> str:
    """Return the name of a new user, who has not logged in yet."""
    name = unique("user")
    async with Door(running.address).client("root", running.root_password()) as root:
        await root.users.create(name, PASSWORD)
    return name


async def test_a_flood_elsewhere_keeps_nobody_out(flooded: ReplicaProcesses) -> None:
    """While one address guesses a user's passwords, the user can log in from another one."""
    name, home = await new_user(flooded), Door(flooded.address)
    async with at(flooded, FIRST_SOURCE) as there, flood(there, name) as attack:
        for _ in range(LOGINS):
            assert await home.is_in_force(await home.by_password(name))
        await attack.until_enough()
        assert await home.is_in_force(await home.by_password(name))


async def test_a_flood_from_the_same_address_keeps_no_user_of_it_out(
    flooded: ReplicaProcesses,
) -> None:
    """A user who logged in from an address can do so again while others guess from there.

    A stranger at that address cannot, and learns when to try again.
    """
    name, stranger = await new_user(flooded), await new_user(flooded)
    async with at(flooded, SECOND_SOURCE) as there:
        await there.by_password(name)
        async with flood(there, unique("another")) as attack:
            for _ in range(LOGINS):
                assert await there.is_in_force(await there.by_password(name))
            await attack.until_enough()
            assert await there.is_in_force(await there.by_password(name))
        refusal = await refusal_of(there.by_password(stranger))
        while "waiting already" in refusal.message:  # the rest of the flood
            refusal = await refusal_of(there.by_password(stranger))
    assert refusal.reason == Reason.REASON_QUOTA_EXCEEDED
    delay_ms = refusal.details["retry_delay_ms"]
    assert refusal.message == f"Too many failed attempts; try again in {delay_ms} ms."
