"""Who is asked for which part next, and who takes over from a slow peer."""

from __future__ import annotations

from coordinator.snapshot.layer_parts import LayerPart
from coordinator.snapshot.layer_sources import (
    FETCHES_MAX,
    FETCHES_PER_PEER_MAX,
    LayerSources,
    NextFetch,
)
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference

LAYER = LayerReference(digest=b"d" * 32, size_bytes=100)
OTHER = LayerReference(digest=b"o" * 32, size_bytes=100)


def sources(*peers: int) -> LayerSources:
    """Return peers that all have the layer."""
    made = LayerSources(peers)
    for peer in peers:
        made.has_layers(peer, [LAYER.digest])
    return made


def part(**fields: object) -> LayerPart:
    """Return a part of the layer."""
    return LayerPart(LAYER, 0, 100, **fields)  # type: ignore[arg-type]


def test_the_peer_with_the_least_to_do_is_next() -> None:
    """Peers take turns until each has as much as it may."""
    made, pending = sources(0, 1), [part() for _ in range(9)]
    asked = []
    while (found := made.next_fetch(pending)) is not None:
        asked.append(found.replica)
        pending.remove(found.part)
        made.begun(found.replica)
    assert asked == [0, 1] * FETCHES_PER_PEER_MAX


def test_one_peer_is_asked_before_the_others() -> None:
    """Another one is asked once that peer has failed at the part."""
    made, wanted = sources(0, 1), part(only_from=1)
    assert made.next_fetch([wanted]) == NextFetch(wanted, 1)
    wanted.failures[1] = "damaged"
    assert made.next_fetch([wanted]) == NextFetch(wanted, 0)


def test_heirs() -> None:
    """An idle peer takes a part over once, unless it has work, lacks the layer, or another peer is
    to send the whole layer."""
    assert sources(0, 1).heir_of(part(), 0, []) == 1
    assert sources(0, 1).heir_of(part(), 0, [part()]) is None
    assert sources(0, 1).heir_of(part(), 0, [LayerPart(OTHER, 0, 100)]) == 1
    assert sources(0, 1).heir_of(part(taken_over={1}), 0, []) is None
    assert sources(0, 1).heir_of(part(only_from=0, is_alone=True), 0, []) is None
    assert sources(0, 1).heir_of(LayerPart(OTHER, 0, 100), 0, []) is None
    assert sources(0).heir_of(part(), 0, []) is None


def test_peers_that_stand_still_do_not_use_up_what_all_may_do() -> None:
    """Where as many fetches run as may, an idle peer takes over all the same: one of them ends."""
    made = sources(*range(4))
    for number in range(FETCHES_MAX):
        made.begun(number % 3)
    assert made.next_fetch([part()]) is None
    assert made.heir_of(part(), 0, []) == 3
