"""What must hold whatever happens: the checkers of `testkit.checkers`, and one for the chain.

Each has a planted bug in `planted_bugs.py` that it finds.
"""

from __future__ import annotations

from typing import Any, Final, cast

from testkit.checkers.checker import Checker
from testkit.checkers.checks import SHARED
from testkit.simulation.application import ApplicationModel, SimulatedRequest


class RepliesAreTheModels(Checker):
    """What clients are told is what a plain loop over the one history says."""

    @property
    def _model(self) -> ApplicationModel:
        return cast(ApplicationModel, self.history.model)

    def acknowledged(self, request: SimulatedRequest, answer: Any) -> None:
        wrong = self._model.wrong_reply(request, answer.op, answer.reply)
        if wrong is not None:
            raise self.broken(f"{request} was answered {answer}: {wrong}")

    def read(self, read: Any, answer: Any) -> None:
        wrong = self._model.wrong_read(read.query, answer.op, answer.reply)
        if wrong is not None:
            raise self.broken(f"{read} was answered {answer}: {wrong}")


CHECKERS: Final[tuple[type[Checker], ...]] = (*SHARED, RepliesAreTheModels)
