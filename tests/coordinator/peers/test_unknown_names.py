"""Peers whose names have no address for a while, or are told late."""

from __future__ import annotations

import asyncio
import logging

import pytest

from coordinator.peers.status import LinkState
from tests.coordinator.peers.name_server import named
from tests.coordinator.peers.peer_trial import config, free_addresses, serving, until


async def test_an_unknown_name_is_said_from_the_start_on(caplog: pytest.LogCaptureFixture) -> None:
    """A link to a name without an address says so in the log, once, and connects when the name
    leads to the peer."""
    addresses = free_addresses()
    host, _, port = addresses[1].rpartition(":")
    async with named(None, int(port)) as (names, target):
        mine, theirs = config({**addresses, 1: target}, 0), config(addresses, 1)
        with caplog.at_level(logging.INFO, "coordinator.peers.link"):
            async with serving(mine) as trial, serving(theirs):
                await until(lambda: trial.peers.links[1].failures >= 3)
                assert trial.status(1).state is LinkState.CONNECTING
                names.address = host
                await trial.until_connected(1)
                # Before the end of the two, which changes links once more.
                told = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    states = [
        (each["state"], "errors resolving" in each["why"])
        for each in told
        if each["address"] == target
    ]
    assert states == [("connecting", True), ("connected", False)]


@pytest.mark.long
async def test_a_name_server_that_answers_late() -> None:
    """A lookup may take longer than a hello: with a dead first name server each does."""
    addresses = free_addresses()
    host, _, port = addresses[1].rpartition(":")
    async with named(host, int(port)) as (names, target):
        names.loses_first = True
        mine, theirs = config({**addresses, 1: target}, 0), config(addresses, 1)
        async with serving(mine) as trial, serving(theirs):
            await trial.until_connected(1)


async def test_a_peer_that_accepts_and_says_nothing() -> None:
    """The patience for lookups is none for a peer that is silent: an attempt ends early."""
    addresses = free_addresses()
    host, _, port = addresses[1].rpartition(":")
    writers: list[asyncio.StreamWriter] = []

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    async with (
        await asyncio.start_server(say_nothing, host, int(port)),
        serving(config(addresses, 0)) as trial,
    ):
        await until(lambda: "timed out before receiving SETTINGS" in trial.status(1).why)
        for writer in writers:
            writer.close()
