"""The language of `snapshot bisect` and of `find`, read into functions; nothing is evaluated.

    condition  = exists(CHOICE) | count(CHOICE) SIGN NUMBER, joined by `and`, `or`, `not` and ( )
    CHOICE     = KIND | KIND where predicate
    predicate  = VALUE SIGN VALUE | FIELD, joined by `and`, `or`, `not` and ( )
    VALUE      = FIELD | len(FIELD) | "text" | 7 | true | false | null
    SIGN       = == != < <= > >=, and ~ for a glob: name ~ "order*"

FIELD is a name, or names joined by dots. Behind a list it stands for each of its elements, and a
comparison holds if it holds for one. Types are checked before anything is read. An expression has
at most 1,000 characters and 50 levels. `count` of a whole kind reads the manifest alone; otherwise
a kind is read once, up to the entity that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from viewstamp.format.columns import Row
from viewstamp.snapshots.errors import BadExpression
from viewstamp.snapshots.explore.comparisons import (
    EQUALITIES,
    LIKE,
    ORDERS,
    SIGNS,
    Operand,
    compared,
    field_operand,
    length_operand,
    literal_operand,
)
from viewstamp.snapshots.explore.expression_kinds import (
    ExpressionKind,
    FieldType,
    ValueType,
    expression_kinds,
    kind_names,
    types_of,
)
from viewstamp.snapshots.explore.expression_words import ExpressionWord, WordType, words_of
from viewstamp.snapshots.explore.open_generation import OpenGeneration

LEVELS_MAX: Final = 50
# So many rows are told at once, because telling costs more than reading one.
ROWS_TOLD: Final = 1_000
LITERALS: Final[Mapping[str, tuple[Any, ValueType]]] = {
    "true": (True, ValueType.TRUTH),
    "false": (False, ValueType.TRUTH),
    "null": (None, ValueType.NULL),
}
_COUNT_SIGNS: Final = {**EQUALITIES, **ORDERS}
# These mean something in an expression, so they begin no field.
_RESERVED: Final = frozenset({"and", "or", "not", "where", *LITERALS})

Progress = Callable[[int], None]
# What a part of an expression tells of a row, or of a generation.
Part = Callable[..., bool]
Predicate = Callable[[Row], bool]
Condition = Callable[[OpenGeneration, Progress], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """Entities of a kind; without a predicate, all of them."""

    kind: ExpressionKind
    predicate: Predicate | None = None

    def rows(self, generation: OpenGeneration, progress: Progress) -> Iterator[Row]:
        """Yield what is chosen, in order; tell `progress` now and then how many it read."""
        for number, row in enumerate(self.kind.rows(generation), start=1):
            if not number % ROWS_TOLD:
                progress(ROWS_TOLD)
            if self.predicate is None or self.predicate(row):
                yield row

    def count(self, generation: OpenGeneration, progress: Progress, enough: int) -> int:
        """Return how many are chosen, or `enough` if there are that many or more."""
        if self.predicate is None:
            return min(enough, self.kind.count(generation))
        return sum(1 for _ in islice(self.rows(generation, progress), enough))


def read_condition(text: str) -> Condition:
    """Return the condition that an expression states of a generation. Raises BadExpression."""
    return _Parser(text).condition()


def read_choice(text: str) -> Choice:
    """Return the entities that `KIND where PREDICATE` chooses. Raises BadExpression."""
    return _Parser(text).lone_choice()


class _Parser:
    """Reads words from left to right; each method reads what it is named after."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = words_of(text)
        self._place = 0
        self._level = 0

    @property
    def _word(self) -> ExpressionWord:
        return self._words[self._place]

    def condition(self) -> Condition:
        found = self._either(self._question)
        self._expect_end()
        return found

    def lone_choice(self) -> Choice:
        found = self._choice()
        self._expect_end()
        return found

    # --- What conditions and predicates share ---

    def _either(self, atom: Callable[[], Part]) -> Part:
        parts = [self._both(atom)]
        while self._takes("or"):
            parts.append(self._both(atom))
        return parts[0] if len(parts) == 1 else lambda *given: any(one(*given) for one in parts)

    def _both(self, atom: Callable[[], Part]) -> Part:
        parts = [self._negated(atom)]
        while self._takes("and"):
            parts.append(self._negated(atom))
        return parts[0] if len(parts) == 1 else lambda *given: all(one(*given) for one in parts)

    def _negated(self, atom: Callable[[], Part]) -> Part:
        with self._deeper():
            if self._takes("not"):
                part = self._negated(atom)
                return lambda *given: not part(*given)
            if self._takes("("):
                part = self._either(atom)
                self._expect(")")
                return part
            return atom()

    # --- Conditions ---

    def _question(self) -> Condition:
        if self._takes("exists"):
            choice = self._in_parentheses()
            return lambda generation, progress: choice.count(generation, progress, 1) == 1
        if self._takes("count"):
            return self._counted(self._in_parentheses())
        raise self._bad("a condition begins with exists(...) or count(...)", _ABOUT_CONDITIONS)

    def _counted(self, choice: Choice) -> Condition:
        sign = self._sign(_COUNT_SIGNS, "count(...) is compared by")
        if self._word.type is not WordType.NUMBER:
            raise self._bad("count(...) is compared with a number", "such as count(topic) > 10")
        number, holds = int(self._take().written), _COUNT_SIGNS[sign]
        # One more than the number decides every comparison with it.
        enough = max(number, 0) + 1
        return lambda generation, progress: holds(
            choice.count(generation, progress, enough), number
        )

    def _in_parentheses(self) -> Choice:
        self._expect("(")
        choice = self._choice()
        self._expect(")", "`where` and a predicate, or )" if choice.predicate is None else ")")
        return choice

    def _choice(self) -> Choice:
        kind = expression_kinds().get(self._word.written)
        if kind is None:
            close = get_close_matches(self._word.written, kind_names(), n=1)
            hint = (
                f"write {close[0]}, if you mean it"
                if close
                else f"choose from {', '.join(kind_names())}"
            )
            raise self._bad("here stands the kind of an entity", hint)
        self._take()
        if not self._takes("where"):
            return Choice(kind)
        return Choice(kind, self._either(lambda: self._comparison(kind)))

    # --- Predicates ---

    def _comparison(self, kind: ExpressionKind) -> Predicate:
        begin = self._word
        left = self._operand(kind)
        if self._word.written not in SIGNS:
            return self._bare(begin, left)
        word = self._word
        sign = self._sign(dict.fromkeys(SIGNS), "values are compared by")
        start = self._word
        right = self._operand(kind)
        self._check(left.type, word, right.type, start)
        return compared(left, sign, right)

    def _bare(self, begin: ExpressionWord, operand: Operand) -> Predicate:
        """Return the predicate of a field that is true or false by itself."""
        if operand.type.type is ValueType.TRUTH:
            return compared(operand, "==", literal_operand(True, ValueType.TRUTH))
        text = f"it is {operand.type.type.value}, and no condition by itself"
        raise self._bad(text, f"compare it, by one of {' '.join(SIGNS)}", begin)

    def _operand(self, kind: ExpressionKind) -> Operand:
        word = self._word
        if word.type is WordType.NUMBER:
            return literal_operand(int(self._take().written), ValueType.NUMBER)
        if word.type is WordType.TEXT:
            return literal_operand(self._take().content, ValueType.TEXT)
        if word.written in LITERALS:
            return literal_operand(*LITERALS[self._take().written])
        if word.type is not WordType.NAME or word.written in _RESERVED:
            raise self._bad("here stands a field or a value", f"fields: {_named(kind.fields)}")
        if self._is_length():
            self._take()
            self._expect("(")
            path, _ = self._path(kind)
            self._expect(")")
            return length_operand(path)
        path, field = self._path(kind)
        return field_operand(path, field)

    def _is_length(self) -> bool:
        return self._word.written == "len" and self._words[self._place + 1].written == "("

    def _path(self, kind: ExpressionKind) -> tuple[list[str], FieldType]:
        if self._word.type is not WordType.NAME:
            raise self._bad("here stands a field", f"fields: {_named(kind.fields)}")
        word = self._take()
        path, fields, position = word.written.split("."), kind.fields, word.position
        field = FieldType(ValueType.FIELDS)
        for name in path:
            if name not in fields:
                raise self._bad_at(
                    position, f"{kind.name} have no field {name!r} here", _hint(name, fields)
                )
            field = fields[name]
            fields = types_of(field.inside) if field.inside is not None else {}
            position += len(name) + 1
        return path, field

    def _check(
        self, left: FieldType, sign: ExpressionWord, right: FieldType, start: ExpressionWord
    ) -> None:
        """Refuse values of types that have nothing in common, and words that a field never has."""
        types = {left.type, right.type} - {ValueType.NULL}
        if ValueType.FIELDS in types and ValueType.NULL not in (left.type, right.type):
            raise self._bad(
                "a group of fields is compared with null alone", "name a field in it", sign
            )
        if len(types) > 1:
            said = f"{left.type.value} is compared with {right.type.value}"
            raise self._bad(said, f"write {left.type.value} here", start)
        if sign.written == LIKE and types != {ValueType.TEXT}:
            raise self._bad("~ compares texts with a glob", "use == for others", sign)
        if sign.written in ORDERS and not types <= {ValueType.NUMBER, ValueType.TEXT}:
            raise self._bad("only numbers and texts have an order", "use == or !=", sign)
        is_word = sign.written in EQUALITIES and start.type is WordType.TEXT
        if is_word and left.words and start.content not in left.words:
            hint = f"one of {', '.join(left.words)}"
            raise self._bad("the field never has this value", hint, start)

    # --- Words ---

    def _take(self) -> ExpressionWord:
        word = self._word
        self._place += 1
        return word

    def _takes(self, written: str) -> bool:
        is_there = self._word.written == written and self._word.type is not WordType.TEXT
        self._place += is_there
        return is_there

    def _expect(self, written: str, hint: str = "") -> None:
        if not self._takes(written):
            raise self._bad(f"{written} is missing", f"write {hint or written} here")

    def _expect_end(self) -> None:
        if self._word.type is not WordType.END:
            raise self._bad("the expression should end here", "join conditions by `and` or `or`")

    def _sign(self, signs: Mapping[str, object], told: str) -> str:
        if self._word.type is not WordType.SIGN or self._word.written not in signs:
            raise self._bad(f"{told} {' '.join(signs)}", "write one of these here")
        return self._take().written

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._level += 1
        if self._level > LEVELS_MAX:
            raise self._bad(
                f"more than {LEVELS_MAX} levels of parentheses and `not`", "write it flatter"
            )
        yield
        self._level -= 1

    def _bad(self, message: str, hint: str, word: ExpressionWord | None = None) -> BadExpression:
        return self._bad_at((word or self._word).position, message, hint)

    def _bad_at(self, position: int, message: str, hint: str) -> BadExpression:
        return BadExpression(self._text, position, message, hint)


_ABOUT_CONDITIONS: Final = 'such as exists(topic where name == "orders") or count(partition) > 1000'


def _named(fields: Mapping[str, FieldType]) -> str:
    return ", ".join(fields)


def _hint(name: str, fields: Mapping[str, FieldType]) -> str:
    close = get_close_matches(name, fields, n=1)
    if close:
        return f"write {close[0]}, if you mean it"
    return f"fields: {_named(fields)}" if fields else "it is a value, and has no fields"
