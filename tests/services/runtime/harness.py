"""A machine of the echo domain that is fed items, for all tests of the machine."""

from __future__ import annotations

from typing import Any

from services.runtime.machine import AnsweredQueries, Machine
from tests.services.runtime import echo
from tests.services.runtime.echo import batch
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1.errors_pb2 import Reason

MALFORMED = b"\x22\x05ab"  # a string of 5 bytes of which only 2 are present


class MachineHarness:
    """A machine that is fed items, each call a batch with the next sequence."""

    def __init__(self) -> None:
        """Start with an empty machine."""
        self.machine = Machine(echo.DOMAIN)

    def apply(self, *items: pb.Item) -> AnsweredQueries:
        """Apply the items as the next logged batch."""
        return self.machine.apply(batch(self.machine.sequence + 1, *items))

    def one(self, item: pb.Item) -> pb.Outcome:
        """Apply one item and return its outcome."""
        (outcome,) = self.apply(item).reply.outcomes
        return outcome

    def read(self, item: pb.Item) -> pb.Outcome:
        """Read outside the log and return the outcome."""
        (outcome,) = self.machine.apply(batch(0, item)).reply.outcomes
        return outcome

    def texts(self) -> dict[str, str]:
        """Return the words by name."""
        return {name: word.text for name, word in self.machine.state.words.rows.items()}


def reasons(errors: Any) -> dict[int, str]:
    """Return sparse errors as index -> reason."""
    return {e.index: Reason.Name(e.error.reason).removeprefix("REASON_") for e in errors}
