"""Makes one tree of several variants of a document, whose parts say under which features they are.

A variant is a set of features, and what is rendered with them. Mappings are merged by key, lists by
the names of their items, or by the items themselves. Whatever cannot be said by a condition of two
features, or of three that are on, or has no common order, is an error: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final, TypeAlias

from tools.manifests.features import FEATURES, Features

Variants: TypeAlias = Mapping[Features, Any]
Test: TypeAlias = Callable[[Features], bool]
# What tells items of a list apart, if they are mappings that have it.
_IDENTITIES: Final = ("name", "mountPath", "key", "alert")


class MergeError(Exception):
    """The variants differ in a way that the chart cannot say."""


@dataclass(frozen=True, slots=True)
class Plain:
    """The same in every variant."""

    value: Any


@dataclass(frozen=True, slots=True)
class Part:
    """A key or an item, under a condition of the chart; None if it is always there."""

    key: str
    condition: str | None
    node: Node


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapping."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A list; the keys of its parts are of no interest."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, each under its condition; exactly one holds."""

    parts: tuple[Part, ...]


Node: TypeAlias = Plain | Mapped | Listed | Choice


def merged(variants: Variants) -> Node:
    """Return the tree of all variants. Raises MergeError."""
    values = list(variants.values())
    if all(value == values[0] for value in values):
        return Plain(values[0])
    if all(isinstance(value, dict) for value in values):
        return Mapped(_parts(variants, variants, "a mapping"))
    if all(isinstance(value, list) for value in values):
        keyed = {chosen: _keyed(value) for chosen, value in variants.items()}
        return Listed(_parts(keyed, keyed, "a list"))
    return Choice(tuple(_choices(variants)))


def _parts(variants: Variants, keyed: Mapping[Features, dict[str, Any]], what: str) -> Any:
    keys = _common_order([list(one) for one in keyed.values()], what)
    found = []
    for key in keys:
        having = {chosen: one[key] for chosen, one in keyed.items() if key in one}
        condition = condition_of(having.keys(), variants.keys())
        found.append(Part(key, condition, merged(having)))
    return tuple(found)


def _keyed(items: list[Any]) -> dict[str, Any]:
    found = {_identity(item): item for item in items}
    if len(found) != len(items):
        raise MergeError(f"two items of a list look the same: {items}")
    return found


def _identity(item: Any) -> str:
    if isinstance(item, dict):
        for name in _IDENTITIES:
            if name in item:
                return f"{name}={item[name]}"
    return repr(item)


def _choices(variants: Variants) -> Iterable[Part]:
    seen: list[Any] = []
    for value in variants.values():
        if value not in seen:
            seen.append(value)
    for value in seen:
        having = [chosen for chosen, other in variants.items() if other == value]
        yield Part("", condition_of(having, variants.keys()), Plain(value))


def _common_order(orders: Sequence[Sequence[str]], what: str) -> list[str]:
    """Return all keys in an order that agrees with each of these. Raises MergeError."""
    found: list[str] = []
    # The longest first, so that most keys have their place before others are put between them.
    for order in sorted(orders, key=len, reverse=True):
        place = 0
        for key in order:
            if key in found:
                place = found.index(key) + 1
            else:
                found.insert(place, key)
                place += 1
    for order in orders:
        if [key for key in found if key in order] != list(order):
            raise MergeError(
                f"{what} has its parts in one order here, and in another there: {order}"
            )
    return found


def condition_of(having: Iterable[Features], among: Iterable[Features]) -> str | None:
    """Return what holds for the first variants and for no other; None if those are all.

    Raises MergeError if no condition of two features does that, or of three that are on.
    """
    wanted, everything = set(having), list(among)
    if len(wanted) == len(everything):
        return None
    for text, holds in _CONDITIONS:
        if all(holds(chosen) == (chosen in wanted) for chosen in everything):
            return text
    raise MergeError(f"no condition tells {sorted(map(sorted, wanted))} from the other variants")


def _is(name: str, is_on: bool, chosen: Features) -> bool:
    return (name in chosen) is is_on


def _both(one: Test, other: Test, chosen: Features) -> bool:
    return one(chosen) and other(chosen)


def _either(one: Test, other: Test, chosen: Features) -> bool:
    return one(chosen) or other(chosen)


def _all(tests: Sequence[Test], chosen: Features) -> bool:
    return all(holds(chosen) for holds in tests)


def _conditions() -> Iterable[tuple[str, Test]]:
    """Yield conditions, the simplest first, and what they test."""
    literals: list[tuple[str, Test]] = [
        (feature.condition if is_on else f"(not {feature.condition})", partial(_is, name, is_on))
        for is_on in (True, False)
        for name, feature in FEATURES.items()
    ]
    yield from literals
    for word, joined in (("and", _both), ("or", _either)):
        for (one, holds), (other, other_holds) in combinations(literals, 2):
            yield f"({word} {one} {other})", partial(joined, holds, other_holds)
    # What a restore needs for several replicas depends on a third feature. None of it is negative.
    plain = literals[: len(FEATURES)]
    for chosen in combinations(plain, 3):
        text = " ".join(name for name, _ in chosen)
        yield f"(and {text})", partial(_all, tuple(holds for _, holds in chosen))


_CONDITIONS: Final = tuple(_conditions())
