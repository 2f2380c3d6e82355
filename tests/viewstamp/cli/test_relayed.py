"""Commands through a backup whose hint names a primary that is unknown here."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

from tests.viewstamp.client.fake_gateway import Context, FakeGateway
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.cli.relayed import RelayedClient
from viewstamp.client import Client, OutcomeUnknown, TimedOut
from viewstamp.client.consistency import at
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoints
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_GUARDS

NOWHERE = "viewstamp-0.viewstamp-headless.invalid:7400"
CONSISTENCY_KEY: Final = "viewstamp-consistency"
DELETION: Final = snapshots_pb2.DeleteSnapshotRequest(generation=3)
TRIAL: Final = snapshots_pb2.DeleteSnapshotRequest(generation=3, validate_only=True)
GUARDED: Final[dict[str, Callable[[Client], Awaitable[Any]]]] = {
    "a dry run": lambda client: client.call(TRIAL),
    "a dry run of a client at a revision": lambda client: client.at(9).call(TRIAL),
    "one of several": lambda client: client.batch([TRIAL]),
    "a part of a transaction": lambda client: client.transact([TRIAL]),
    "a transaction": lambda client: client.transact([DELETION], validate_only=True),
}


class Backup(FakeGateway):
    """Refuses streams, and passes single calls on."""

    def __init__(self) -> None:
        super().__init__()
        self.names(NOWHERE)
        self.refuses_once: Refusal | None = None
        self.refuses_names: dict[str, Refusal] = {}  # of streams to be created
        self.is_silent = False
        self.passed_on: list[str] = []
        self.consistencies: list[str] = []  # of single calls that demand one

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
        self.consistencies += [
            value for key, value in context.invocation_metadata() if key == CONSISTENCY_KEY
        ]
        if isinstance(request, submit_pb2.TransactRequest):
            results = [b""] * len(request.parts)
            return submit_pb2.TransactResponse(results=results)
        if isinstance(request, snapshots_pb2.DeleteSnapshotRequest):
            return snapshots_pb2.DeleteSnapshotResponse()
        if isinstance(request, streams_pb2.CreateStreamRequest):
            if (refused := self.refuses_names.get(request.name)) is not None:
                await self._abort(context, refused)
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


@pytest.fixture
async def relayed(backup: Backup) -> AsyncIterator[RelayedClient]:
    """A client of that backup."""
    identity = AccessTokenSource(Credentials(access_token=backup.valid_token))
    client = RelayedClient(Endpoints([backup.address]), identity, 5.0)
    async with client:
        yield client


@pytest.mark.parametrize("how", GUARDED)
async def test_what_a_build_may_ignore_is_not_passed_on(
    how: str, backup: Backup, relayed: RelayedClient
) -> None:
    """Below its level a guard may get to an older primary, which would carry the command out."""
    backup.domain.feature_level = FEATURE_LEVEL_GUARDS - 1
    with pytest.raises(Refusal, match="needs feature level 8, and 7 is in force") as caught:
        await GUARDED[how](relayed)
    assert caught.value.reason == Reason.REASON_FEATURE_LEVEL_REQUIRED
    assert backup.passed_on == ["GetStatusRequest"]
    # What every build knows needs no level.
    await relayed.streams.create("orders", validate_only=True)
    assert backup.passed_on == ["GetStatusRequest", "CreateStreamRequest"]


async def test_guards_are_passed_on_at_their_level(backup: Backup, relayed: RelayedClient) -> None:
    """Once the level is in force every build knows the guards; the level is asked for once."""
    backup.domain.feature_level = FEATURE_LEVEL_GUARDS
    for call in GUARDED.values():
        await call(relayed)
    sent = [*["DeleteSnapshotRequest"] * 3, *["TransactRequest"] * 2]
    assert [name for name in backup.passed_on if name != "GetStatusRequest"] == sent
    assert backup.passed_on[0] == "GetStatusRequest"


async def test_who_may_not_read_the_level_learns_what_to_do(
    backup: Backup, relayed: RelayedClient
) -> None:
    """Without the level nobody can say whether a guard counts, so it is not passed on."""
    backup.refuses_once = Refusal(Reason.REASON_PERMISSION_DENIED, "no read_servers")
    with pytest.raises(Refusal, match="ask for the permission read_servers"):
        await relayed.call(TRIAL)
    assert backup.passed_on == ["GetStatusRequest"]


async def test_a_read_of_the_past_says_so(backup: Backup, relayed: RelayedClient) -> None:
    """A backup is told the revision, whether the client or the call names it."""
    await relayed.at(7).users.who_am_i()
    await relayed.users.who_am_i(consistency=at(8))
    assert backup.consistencies == ["at=7", "at=8"]


def creations(*names: str) -> list[streams_pb2.CreateStreamRequest]:
    """Return requests for streams."""
    return [streams_pb2.CreateStreamRequest(name=name) for name in names]


async def test_several_commands_are_passed_on_one_by_one(
    backup: Backup, relayed: RelayedClient
) -> None:
    """Without a session there is no request of several: each is sent alone, and answered."""
    backup.refuses_names["b"] = Refusal(Reason.REASON_STREAM_EXISTS, "it is there")
    made, refused, last = await relayed.batch(creations("a", "b", "c"))
    assert isinstance(refused, Refusal)
    assert refused.reason == Reason.REASON_STREAM_EXISTS
    assert [type(each) for each in (made, last)] == [streams_pb2.CreateStreamResponse] * 2
    assert backup.passed_on == ["CreateStreamRequest"] * 3
    assert await relayed.batch([]) == []


async def test_several_commands_end_where_nobody_can_decide_one(
    backup: Backup, relayed: RelayedClient
) -> None:
    """Nothing is sent behind a command that had no decision, and the error says how far it came."""
    backup.refuses_names["b"] = Refusal(Reason.REASON_VIEW_CHANGE, "no primary yet")
    with pytest.raises(OutcomeUnknown, match="1 of 3 commands were answered, then: no primary yet"):
        await relayed.batch(creations("a", "b", "c"))
    with pytest.raises(Refusal, match="no primary yet"):
        await relayed.batch(creations("b", "c"))
    assert backup.passed_on == ["CreateStreamRequest"] * 3


async def test_a_relay_without_an_answer_is_no_refusal(
    backup: Backup, relayed: RelayedClient
) -> None:
    """What may still take effect at the primary is told as that, alone and as one of several."""
    lost = Refusal(Reason.REASON_OUTCOME_UNKNOWN, "the primary could not be asked")
    backup.refuses_once = lost
    with pytest.raises(OutcomeUnknown, match="could not be asked"):
        await relayed.streams.create("a")
    backup.refuses_once = lost
    with pytest.raises(OutcomeUnknown, match="0 of 2 commands were answered"):
        await relayed.batch(creations("a", "b"))
    backup.refuses_once = lost
    code, said = await run_at(backup, "stream", "create", "orders")
    assert (code, "OUTCOME_UNKNOWN" in said) == (4, True)


async def test_several_commands_have_one_deadline(backup: Backup, relayed: RelayedClient) -> None:
    """A command without an answer may have taken effect; one that was not sent has not."""
    backup.is_silent = True
    with pytest.raises(OutcomeUnknown, match="0 of 2 commands were answered"):
        await relayed.batch(creations("a", "b"), timeout_s=0.2)
    with pytest.raises(TimedOut):
        await relayed.batch(creations("a"), timeout_s=-0.5)
    assert backup.passed_on == ["CreateStreamRequest"]
