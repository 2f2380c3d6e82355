"""Expressions cut into words: names, numbers, texts and signs, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from viewstamp.snapshots.errors import BadExpression

EXPRESSION_CHARACTERS_MAX: Final = 1_000

_WORD: Final = re.compile(
    r"""(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    | (?P<number>-?[0-9]+)
    | (?P<text>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
    | (?P<sign>==|!=|<=|>=|[<>~()])""",
    re.VERBOSE,
)
_BLANKS: Final = re.compile(r"\s*")
_ESCAPED: Final = re.compile(r"\\(.)")


class WordType(Enum):
    """What a word of an expression is."""

    NAME = "name"
    NUMBER = "number"
    TEXT = "text"
    SIGN = "sign"
    END = "end"


class ExpressionWord(NamedTuple):
    """A word, as it stands there, and the place of its first character, from 0."""

    type: WordType
    written: str
    position: int

    @property
    def content(self) -> str:
        """The text between the quotes, with `\\"` as a quote."""
        return _ESCAPED.sub(r"\1", self.written[1:-1])


def words_of(text: str) -> list[ExpressionWord]:
    """Return the words of an expression; the last one is its end. Raises BadExpression."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        message = f"it has {len(text)} characters, {EXPRESSION_CHARACTERS_MAX} are allowed"
        raise BadExpression(text, EXPRESSION_CHARACTERS_MAX, message, "ask for less at once")
    return list(_words(text))


def _words(text: str) -> Iterator[ExpressionWord]:
    place = _after_blanks(text, 0)
    while place < len(text):
        match = _WORD.match(text, place)
        if match is None or match.lastgroup is None:
            raise BadExpression(text, place, *_stranger(text[place]))
        yield ExpressionWord(WordType(match.lastgroup), match.group(), place)
        place = _after_blanks(text, match.end())
    yield ExpressionWord(WordType.END, "", place)


def _after_blanks(text: str, place: int) -> int:
    match = _BLANKS.match(text, place)
    assert match is not None, "no blanks match, too"
    return match.end()


def _stranger(character: str) -> tuple[str, str]:
    """Return what is wrong with a character that begins no word, and what would be right."""
    if character in "\"'":
        return "a text is not closed", f"end it with {character}"
    if character == "=":
        return "there is no sign =", "write == to compare"
    if character in "&|":
        return f"there is no sign {character}", "write `and` and `or`"
    if character == "!":
        return "there is no sign !", "write `not`"
    return f"{character!r} means nothing here", "see `viewstamp snapshot bisect --help`"
