"""Random calls look alike to both ends, whichever transport carries them.

Method: each script is followed by the library's client and server, and then with ours at one end or
at both. The transcripts have to be equal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.viewstamp.wire.careful_runner import CarefulRunner
from tests.viewstamp.wire.random_calls import Metadata, Script, ScriptedLine, ScriptEnd, ScriptStep
from viewstamp.grpc_transport import GrpcTransport
from viewstamp.wire.transport import WireTransport

EXAMPLES: Final = 150
EXAMPLES_OF_ALL: Final = 5_000
LIBRARY: Final = GrpcTransport()
OURS: Final = WireTransport()

# Small ones, those around a frame, and those around a window.
SIZES: Final = st.one_of(
    st.integers(0, 40), st.integers(16_370, 16_400), st.integers(65_500, 65_560)
)
KEYS: Final = st.from_regex(r"x-[a-z0-9_.-]{1,12}", fullmatch=True).filter(
    lambda key: not key.endswith("-bin")
)
WORDS: Final = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40)
PAIRS: Final = st.one_of(
    st.tuples(KEYS, WORDS), st.tuples(KEYS.map(lambda key: key + "-bin"), st.binary(max_size=40))
)
METADATA: Final[st.SearchStrategy[Metadata]] = st.lists(PAIRS, max_size=5).map(tuple)
# Spaces at the ends of a field have no meaning in HTTP, and the library sends them as they are.
DETAILS: Final = st.text(max_size=30).map(lambda text: text.strip(" "))
CODES: Final = st.sampled_from([code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Draw a call of any shape that both ends can follow to its end."""
    sends_many, answers_many = draw(st.booleans()), draw(st.booleans())
    end = draw(st.sampled_from(ScriptEnd))
    requests = [ScriptStep(True, size) for size in draw(st.lists(SIZES, max_size=5))]
    answers = [ScriptStep(False, size) for size in draw(st.lists(SIZES, max_size=5))]
    if not sends_many:
        requests = [ScriptStep(True, draw(SIZES))]
    if not answers_many:
        answers = [ScriptStep(False, draw(SIZES))]
    steps = [*requests[:1], *draw(st.permutations([*requests[1:], *answers]))]
    is_refused = end is ScriptEnd.ABORT or (end is ScriptEnd.RETURN and draw(st.booleans()))
    return Script(
        sends_many,
        answers_many,
        draw(METADATA),
        draw(st.none() | METADATA),
        steps,
        draw(st.booleans()),
        end,
        draw(CODES) if is_refused else grpc.StatusCode.OK,
        draw(DETAILS) if is_refused else "",
        draw(METADATA),
    )


class AllLines:
    """A line for each pair of transports, on a loop of its own."""

    def __init__(self) -> None:
        self._runner = CarefulRunner()
        pairs = [(LIBRARY, LIBRARY), (OURS, OURS), (OURS, LIBRARY), (LIBRARY, OURS)]
        self._lines = self._runner.run(self._start(pairs))

    async def _start(self, pairs: list[Any]) -> list[ScriptedLine]:
        lines = [ScriptedLine(client, server) for client, server in pairs]
        for line in lines:
            await line.start()
        return lines

    def transcripts(self, script: Script) -> list[Any]:
        """Return what was seen with each pair, first with the library at both ends."""
        return self._runner.run(self._all(script))

    async def _all(self, script: Script) -> list[Any]:
        return [await line.transcript(script) for line in self._lines]

    def close(self) -> None:
        """End all lines."""
        for line in self._lines:
            self._runner.run(line.close())
        self._runner.close()


@pytest.fixture(scope="module")
def lines() -> Iterator[AllLines]:
    """Open all lines; errors that handlers raise by their scripts are not logged."""
    logging.disable(logging.ERROR)
    try:
        made = AllLines()
        yield made
        made.close()
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "examples", [EXAMPLES, pytest.param(EXAMPLES_OF_ALL, marks=pytest.mark.exhaustive)]
)
def test_a_call_looks_alike_on_both_transports(lines: AllLines, examples: int) -> None:
    """Messages, metadata, status, details, and how the handler ended: all are the same."""

    @settings(max_examples=examples)
    @given(scripts())
    def look_alike(script: Script) -> None:
        library, *others = lines.transcripts(script)
        assert others == [library] * len(others)

    look_alike()
