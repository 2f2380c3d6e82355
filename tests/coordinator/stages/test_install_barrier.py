"""Which services wait for which when sections are installed, and what must be equal in them."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.stages.base import BaseRefusedError
from coordinator.stages.install_barrier import InstallBarrier
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

USERS, STREAMS, GROUPS = 2, 3, 4


def installed(generation: int = 1, **projections: bytes) -> pb.Installed:
    """Return a service's summary of its section."""
    return pb.Installed(
        generation=generation,
        projections=[
            pb.ProjectionDigest(name=name, digest=digest) for name, digest in projections.items()
        ],
    )


async def test_nobody_serves_before_every_section_is_whole() -> None:
    """The first two wait for the third; then all go on."""
    barrier = InstallBarrier((USERS, STREAMS, GROUPS))
    first = asyncio.create_task(barrier.installed(USERS, installed(access=b"a")))
    second = asyncio.create_task(barrier.installed(STREAMS, installed(access=b"a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()

    await barrier.installed(GROUPS, installed())

    await asyncio.gather(first, second)


async def test_a_later_restart_waits_for_nobody() -> None:
    """A service that restarts later waits for nobody, nor does any without a base."""
    barrier = InstallBarrier(())
    await barrier.installed(STREAMS, installed(generation=3, access=b"a"))


async def test_sections_that_tell_different_things_are_refused() -> None:
    """Two digests of one projection show that the sections do not belong together."""
    barrier = InstallBarrier((USERS, STREAMS))
    waiting = asyncio.create_task(barrier.installed(USERS, installed(access=b"a")))
    await asyncio.sleep(0)

    with pytest.raises(BaseRefusedError, match="stages 3 and 2 disagree about access"):
        await barrier.installed(STREAMS, installed(access=b"b"))
    assert not waiting.done()
    waiting.cancel()


async def test_another_generation_is_not_compared() -> None:
    """A service that restarts from a newer snapshot may be ahead of one that still serves."""
    barrier = InstallBarrier((USERS,))
    await barrier.installed(USERS, installed(generation=1, access=b"a"))
    await barrier.installed(STREAMS, installed(generation=2, access=b"b"))
