"""The process that holds the state of an earlier revision: `python -m past <descriptor>`.

It answers its coordinator over the socket of that descriptor, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from coordinator.history.process import LENGTH_BYTES, encode_message
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
    conversation = PastConversation()
    connection = socket.socket(fileno=int(sys.argv[1]))
    # The coordinator may die at any time.
    with connection, connection.makefile("rb") as incoming, contextlib.suppress(ConnectionError):
        while length := int.from_bytes(incoming.read(LENGTH_BYTES)):
            message = incoming.read(length)
            if len(message) < length:
                break
            connection.sendall(encode_message(conversation.answer(pickle.loads(message))))


if __name__ == "__main__":
    main()
