"""The process of the past in a world: the same conversation, without another process."""

from __future__ import annotations

import asyncio
from typing import Final

from coordinator.history.messages import PastAnswer, PastMessage
from coordinator.history.process import PastLink
from past.conversation import PastConversation

ANSWER_S: Final = 0.001


class WorldPast:
    """Answers as the process would, a little later."""

    def __init__(self) -> None:
        """Begin with the empty state."""
        self._conversation = PastConversation()

    async def ask(self, message: PastMessage) -> PastAnswer:
        """Return the answer to a message."""
        await asyncio.sleep(ANSWER_S)
        return self._conversation.answer(message)

    def end(self) -> None:
        """Forget the state."""
        self._conversation = PastConversation()


async def launch_world_past() -> PastLink:
    """Return a new one."""
    return WorldPast()
