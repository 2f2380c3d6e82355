"""Whether this replica still leads, asked before a client is told what only the primary knows.

A primary that was cut off from the others does not notice at once. It knows nothing of later
sessions and requests, and a session that it reports as ended would end. So it first asks for a read
index, as a linearizable read does: everything that any primary told a client before is then in its
state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# As long as a client waits before it looks for another primary.
CONFIRM_DEADLINE_MS: Final = 1_000


class Leading:
    """Asks a quorum, by `ask`, between two checks of the own status.

    `ask` starts the question, and its future is cancelled once nobody waits; `check_serving` raises
    Refusal unless this replica believes that it leads.
    """

    def __init__(
        self,
        ask: Callable[[], asyncio.Future[None]],
        check_serving: Callable[[], None],
        deadline_ms: int = CONFIRM_DEADLINE_MS,
    ) -> None:
        self._ask = ask
        self._check_serving = check_serving
        self._deadline_ms = deadline_ms

    async def confirm(self) -> None:
        """Return if this replica led at some moment since the call.

        Raises Refusal: VIEW_CHANGE without an answer in time, NOT_PRIMARY, OVERLOADED.
        """
        self._check_serving()
        try:
            async with asyncio.timeout(self._deadline_ms / 1000):
                await self._ask()
        except TimeoutError as error:
            raise _unconfirmed(self._deadline_ms) from error
        # On a backup, the primary was the replica confirmed to lead.
        self._check_serving()


def _unconfirmed(deadline_ms: int) -> Refusal:
    return Refusal(
        Reason.REASON_VIEW_CHANGE,
        f"the replica may no longer be the primary: no quorum confirmed it within {deadline_ms} ms;"
        " try again at another replica",
        deadline_ms=deadline_ms,
    )
