"""What runs on the log: how clients make requests, how replicas execute them, and the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from coordinator.mux.applied_digests import AppliedDigests
from coordinator.vsr import Prepare
from testkit.checkers.checker import Executed


class SimulatedRequest(Protocol):
    """A client request. `client` and `number` tell it from every other one."""

    @property
    def client(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def command_count(self) -> int: ...


class Application(Protocol):
    """The stages of one replica."""

    @property
    def op(self) -> int:
        """The last entry that went through all stages."""
        ...

    @property
    def applied_digests(self) -> AppliedDigests:
        """The digests of what the log led to here."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do."""
        ...

    def start(self, prepare: Prepare) -> None:
        """Take in the next committed entry."""
        ...

    def step(self) -> list[Executed]:
        """Do a bit of what is to be done; return the entries that are through now, in op order."""
        ...

    def read(self, query: Any) -> Any:
        """Answer a read after the last entry that was executed."""
        ...

    def crash_stage(self) -> bool:
        """Let a stage die and come back; False if there is none that could."""
        ...

    def save(self) -> bytes:
        """Return the state after the last entry that was executed, for a snapshot."""
        ...


class Load(Protocol):
    """What one client asks for. The client gives each request and read its number."""

    def request(self, client: int, number: int) -> SimulatedRequest:
        """The next request, once the one before was answered."""
        ...

    def query(self) -> Any:
        """The next read."""
        ...

    def answered(self, request: Any, reply: Any) -> None:
        """Learn from a reply."""
        ...


class ApplicationModel(Protocol):
    """A plain, sequential account of what the one history means."""

    def commit(self, prepare: Prepare) -> None:
        """Follow the next entry of the history."""
        ...

    def wrong_reply(self, request: Any, op: int, reply: Any) -> str | None:
        """Return why the reply from entry `op` is wrong; None if it is right."""
        ...

    def wrong_read(self, query: Any, op: int, value: Any) -> str | None:
        """Return why the answer to a read after entry `op` is wrong; None if it is right."""
        ...


@dataclass(frozen=True, slots=True)
class ApplicationKind:
    """An application as the simulator needs it."""

    replica: Callable[[Random, bytes | None], Application]
    """Makes the stages of a replica, in the state of a snapshot or empty."""
    model: Callable[[], ApplicationModel]
    load: Callable[[Any, Random], Load]
    encode: Callable[[Sequence[Any]], bytes]
    bootstrap_body: Callable[[Sequence[bytes]], bytes]
    read_initial_members: Callable[[bytes], Sequence[bytes]]
