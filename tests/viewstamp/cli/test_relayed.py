"""Commands through a backup whose hint names a primary that is unknown here."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.viewstamp.client.fake_gateway import Context, FakeGateway
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.errors import Refusal

NOWHERE = "viewstamp-0.viewstamp-headless.invalid:7400"


class Backup(FakeGateway):
    """Refuses streams, and passes single calls on."""

    def __init__(self) -> None:
        super().__init__()
        self.names(NOWHERE)
        self.refuses_once: Refusal | None = None
        self.is_silent = False
        self.passed_on: list[str] = []

    def names(self, primary: str) -> None:
        """Name this primary from now on."""
        told = f"the primary is at {primary}"
        self.refuse_streams = Refusal(Reason.REASON_NOT_PRIMARY, told, address=primary)

    async def unary(self, request: Any, context: Context) -> Any:
        self.passed_on.append(type(request).__name__)
        if self.refuses_once is not None:
            refusal, self.refuses_once = self.refuses_once, None
            await self._abort(context, refusal)
        if self.is_silent:
            await asyncio.Event().wait()
        if isinstance(request, streams_pb2.CreateStreamRequest):
            return streams_pb2.CreateStreamResponse(stream_id=7)
        return await super().unary(request, context)


@pytest.fixture
async def backup() -> AsyncIterator[Backup]:
    """A backup of this test's own."""
    made = Backup()
    async with made:
        yield made


async def run_at(gateway: FakeGateway, *arguments: str) -> tuple[int | None, str]:
    """Run a command there; return its exit code and its output."""
    ran = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "viewstamp.cli", "--address", gateway.address, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "VIEWSTAMP_ACCESS_TOKEN": gateway.valid_token},
    )
    said, _ = await ran.communicate()
    return ran.returncode, said.decode()


async def test_a_backup_passes_commands_on(backup: Backup) -> None:
    """If the primary's name is unknown, the backup that was reached forwards the command."""
    code, said = await run_at(backup, "stream", "create", "orders")
    assert (code, "created stream 'orders' with id 7" in said) == (0, True)
    assert backup.passed_on == ["CreateStreamRequest"]


async def test_a_read_waits_for_a_primary(backup: Backup) -> None:
    """A read that no replica can answer yet is sent again; a command is not."""
    backup.refuses_once = Refusal(Reason.REASON_VIEW_CHANGE, "no primary yet")
    assert (await run_at(backup, "user", "whoami"))[0] == 0
    assert backup.passed_on == ["WhoAmIRequest", "WhoAmIRequest"]
    backup.refuses_once = Refusal(Reason.REASON_VIEW_CHANGE, "no primary yet")
    code, said = await run_at(backup, "stream", "create", "orders")
    assert (code, "VIEW_CHANGE" in said) == (1, True)


async def test_silence_after_a_command_is_told(backup: Backup) -> None:
    """A command that was passed on and not answered may have taken effect."""
    backup.is_silent = True
    code, said = await run_at(backup, "stream", "create", "orders", "--timeout", "1")
    assert (code, "OUTCOME_UNKNOWN" in said) == (4, True)


async def test_a_primary_with_a_known_name_is_waited_for(backup: Backup) -> None:
    """A primary with a known name may come back, so nothing is forwarded."""
    backup.names("127.0.0.1:1")
    code, said = await run_at(backup, "stream", "create", "orders", "--timeout", "1.5")
    assert (code, "the primary is at 127.0.0.1:1, as was said there" in said) == (3, True)
    assert not backup.passed_on
