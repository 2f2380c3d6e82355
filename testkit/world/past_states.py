"""The process of the past in a world: the same conversation, without another process."""

from __future__ import annotations

import asyncio
from typing import Final

from coordinator.history.messages import PastAnswer, PastMessage
from coordinator.history.process import PastEndedError, PastLink
from past.conversation import PastConversation

ANSWER_S: Final = 0.001
# After so many answers the process ends, as one does that somebody kills; 0 for never.
LAST_ANSWER: Final = 0


class WorldPast:
    """Answers as the process would, a little later."""

    def __init__(self) -> None:
        """Begin with the empty state."""
        self._conversation = PastConversation()
        self._answers = 0

    async def ask(self, message: PastMessage) -> PastAnswer:
        """Return the answer to a message. Raises PastEndedError for one that was killed."""
        await asyncio.sleep(ANSWER_S)
        self._answers += 1
        if 0 < LAST_ANSWER < self._answers:
            raise PastEndedError("the process that builds earlier states was killed")
        return self._conversation.answer(message)

    def end(self) -> None:
        """Forget the state."""
        self._conversation = PastConversation()


async def launch_world_past() -> PastLink:
    """Return a new one."""
    return WorldPast()
