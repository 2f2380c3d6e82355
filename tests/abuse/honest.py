"""An honest caller with a light, steady load, by the product's own client and by unary calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import grpc.aio

from tests.abuse import scene
from tests.abuse.hostile import Hostile
from tests.abuse.tally import Tally
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Client, ClientError, Refusal
from viewstamp.client.transport import refusal_in

REST_S: Final = 0.01
# The honest caller waits for an answer as long as a caller in the field would.
TIMEOUT_S: Final = 30.0
LOGIN_EVERY_S: Final = 1.0
STREAM: Final = "honest"
KINDS: Final = ("command", "read", "login")


@dataclass(slots=True)
class Figures:
    """Results of the honest caller in one phase: milliseconds by kind of call, and errors."""

    latencies_ms: dict[str, list[float]] = field(
        default_factory=lambda: {kind: [] for kind in KINDS}
    )
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """The number of all calls, good and bad."""
        return sum(map(len, self.latencies_ms.values())) + sum(self.errors.values())

    def as_dict(self) -> dict[str, Any]:
        """Return percentiles by kind, calls and errors."""
        rows = {kind: percentiles(values) for kind, values in self.latencies_ms.items()}
        return {**rows, "calls": self.calls, "errors": dict(self.errors)}


def percentiles(values_ms: list[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum."""
    if not values_ms:
        return {"count": 0}
    ordered = sorted(values_ms)
    return {
        "count": len(ordered),
        "p50_ms": round(ordered[len(ordered) // 2], 1),
        "p99_ms": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 1),
        "max_ms": round(ordered[-1], 1),
    }


class Honest:
    """Calls until `stop`; `begin_phase` starts new figures."""

    def __init__(self, client: Client, caller: Hostile) -> None:
        """Call commands and reads with `client`, and logins as any gRPC client would."""
        self._client = client
        self._caller = caller
        self._figures = Figures()
        self._stopping = asyncio.Event()

    def begin_phase(self) -> Figures:
        """Return the figures so far, and begin new ones."""
        figures, self._figures = self._figures, Figures()
        return figures

    async def run(self) -> None:
        """Call until `stop`."""
        await self._client.streams.create(STREAM)
        await asyncio.gather(self._commands_and_reads(), self._logins())

    def stop(self) -> None:
        """End after the call under way."""
        self._stopping.set()

    async def _commands_and_reads(self) -> None:
        step = 0
        while not self._stopping.is_set():
            name = f"topic-{step // 3 % 100}"
            if step % 3 == 0:
                await self._timed("command", self._client.topics.create(STREAM, name))
            elif step % 3 == 1:
                await self._timed("read", self._client.topics.get(STREAM, name))
            else:
                await self._timed("command", self._client.topics.delete(STREAM, name))
            step += 1
            await asyncio.sleep(REST_S)

    async def _logins(self) -> None:
        while not self._stopping.is_set():
            login = users_pb2.LoginRequest(username=scene.HONEST, password=scene.PASSWORD)
            await self._timed("login", self._login(login))
            await asyncio.sleep(LOGIN_EVERY_S)

    async def _login(self, request: users_pb2.LoginRequest) -> None:
        """Log in; repeat where the answer allows it, for as long as the library repeats a read."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    return await self._login_once(request)
                except grpc.aio.AioRpcError as error:
                    refusal = refusal_in(error)
                    if refusal is None or refusal.reason != Reason.REASON_READ_DEADLINE:
                        raise

    async def _login_once(self, request: users_pb2.LoginRequest) -> None:
        await self._caller.channel.unary_unary(
            "/viewstamp.api.users.v1.UsersService/Login",
            request_serializer=users_pb2.LoginRequest.SerializeToString,
            response_deserializer=users_pb2.LoginResponse.FromString,
        )(request, timeout=TIMEOUT_S)

    async def _timed(self, kind: str, call: Any) -> None:
        begun = time.perf_counter()
        try:
            await call
        except Refusal as refusal:
            self._figures.errors[f"{kind}: {refusal.name}"] += 1
        except ClientError as error:
            self._figures.errors[f"{kind}: {type(error).__name__}"] += 1
        except TimeoutError:
            self._figures.errors[f"{kind}: no answer within {TIMEOUT_S} s"] += 1
        except grpc.aio.AioRpcError as error:
            self._figures.errors[f"{kind}: {error.code().name} {error.details()}"[:120]] += 1
        else:
            self._figures.latencies_ms[kind].append((time.perf_counter() - begun) * 1000)


def plain_caller(address: str) -> Hostile:
    """Return a function that opens channels for logins."""
    return Hostile([address], "", "", Tally(), asyncio.Event())
