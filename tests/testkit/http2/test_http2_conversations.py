"""Random conversations of two ends of our HTTP/2 keep all rules, and find bugs that are planted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from testkit.http2.__main__ import EXIT_BROKEN, EXIT_KEPT, main
from testkit.http2.conversation import BrokenRuleError, FrameConversation
from viewstamp.http2 import Connection, StreamClosed
from viewstamp.http2.incoming import Incoming
from viewstamp.http2.outgoing import Outgoing
from viewstamp.http2.streams import Http2Stream

SEEDS = range(1, 61)


def hold_all() -> list[FrameConversation]:
    """Hold some conversations, each on both ways."""
    held = [
        FrameConversation(seed, is_changed=changed) for seed in SEEDS for changed in (False, True)
    ]
    for each in held:
        each.hold()
    return held


def test_conversations_keep_all_rules() -> None:
    """Nothing is lost, blamed or left on a true way; on another one connections do fail."""
    held = hold_all()
    assert sum(each.frames for each in held) > 5_000
    assert sum(each.failures for each in held) > len(SEEDS) // 2


def lose_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose one byte of each large piece of data."""
    queue = Outgoing.queue
    monkeypatch.setattr(
        Outgoing, "queue", lambda self, stream, data: queue(self, stream, data[:5_000])
    )


def give_back_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the peer a little less than was used."""
    give_back = Incoming.give_back_stream

    def less(self: Incoming, stream: Http2Stream, size: int) -> None:
        give_back(self, stream, size - size // 4)

    monkeypatch.setattr(Incoming, "give_back_stream", less)


def send_beyond_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe that a stream has more window than the peer allowed."""
    pump = Outgoing.pump

    def more(self: Outgoing, stream: Http2Stream) -> bool:
        stream.send_window += 100_000
        return pump(self, stream)

    monkeypatch.setattr(Outgoing, "pump", more)


def keep_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep streams that both sides have ended."""
    monkeypatch.setattr(Connection, "forget_if_closed", lambda self, stream: None)


def raise_on_strange_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fault of a stream be an error of the caller."""

    def fail_stream(self: Connection, fault: Any) -> None:
        raise StreamClosed("as planned")

    monkeypatch.setattr(Connection, "fail_stream", fail_stream)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lose_a_byte, BrokenRuleError),
        (give_back_too_little, BrokenRuleError),
        (send_beyond_the_window, BrokenRuleError),
        (keep_streams, (BrokenRuleError, KeyError)),
        (raise_on_strange_bytes, StreamClosed),
    ],
)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    found: type[Exception] | tuple[type[Exception], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each bug breaks a rule in some conversation."""
    plant(monkeypatch)
    with pytest.raises(found):
        hold_all()


def test_the_command_counts_and_names_a_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends well once it has heard enough, and names the seed of a broken rule."""
    monkeypatch.setattr("testkit.http2.chunks.CHUNK_SEEDS", 5)
    # Other processes would not have the planted bug.
    monkeypatch.setattr("testkit.http2.chunks.pool", ThreadPoolExecutor)
    assert main(["--frames", "100", "--processes", "1"]) == EXIT_KEPT
    assert "every rule was kept" in capsys.readouterr().out
    lose_a_byte(monkeypatch)
    assert main(["--frames", "20000", "--processes", "1"]) == EXIT_BROKEN
    assert "seed " in capsys.readouterr().out
