"""The process that holds the state of an earlier revision: `python -m past <descriptor>`.

It answers its coordinator over the socket of that descriptor, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from past.conversation import PastConversation

# Below all that serves the present.
NICENESS: Final = 15
# If memory runs out, this process is the one to end: nothing is lost with it.
FIRST_TO_END: Final = "1000"


def give_way() -> None:
    """Have the system prefer every other process of this container or machine."""
    os.nice(NICENESS)
    # Not on every system, and only a wish.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_END)


def main() -> None:
    """Answer until the other end of the socket is closed."""
    # The coordinator is told to stop, and closes the socket then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    give_way()
    connection = Connection(int(sys.argv[1]))
    conversation = PastConversation()
    # The coordinator may die at any time.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(conversation.answer(connection.recv()))


if __name__ == "__main__":
    main()
