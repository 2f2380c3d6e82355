"""Bugs of state transfer from several peers, planted for the stories that end badly with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from coordinator.peers import fetch
from coordinator.peers.send_shares import SendShares
from coordinator.snapshot import layer_fetching, layer_sources
from coordinator.snapshot.layer_parts import PARTIAL_SUFFIX, LayerPart
from testkit.plants.core_bugs import Patch

_FOR_EVER_MS: Final = 10**9


class TransferPlant(NamedTuple):
    """A bug, and the story that ends badly with it."""

    bug: Callable[[Patch], None]
    story: str


def mix_layers_up(patch: Patch) -> None:
    """A part of a layer goes by its place alone, whatever the digest of the layer."""
    patch.setattr(LayerPart, "name", property(lambda part: f"{part.begin}{PARTIAL_SUFFIX}"))


def ask_for_ever(patch: Patch) -> None:
    """A peer that does not send a part is asked for it again and again."""
    forgetful = property(lambda part: {}, lambda part, failures: None)
    patch.setattr(LayerPart, "failures", forgetful)
    patch.setattr(layer_sources, "FRUITLESS_MAX", _FOR_EVER_MS)


def wait_for_ever(patch: Patch) -> None:
    """Nobody takes over what a peer does not send, and no fetch is given up."""
    patch.setattr(layer_fetching, "TAKE_OVER_MS", _FOR_EVER_MS)
    patch.setattr(fetch, "FIRST_CHUNK_TIMEOUT_MS", _FOR_EVER_MS)
    patch.setattr(fetch, "CHUNK_TIMEOUT_MS", _FOR_EVER_MS)


def send_at_any_speed(patch: Patch) -> None:
    """Peers are sent as much as they take."""

    async def take(self: SendShares, replica: int, size_bytes: int) -> None:
        return

    patch.setattr(SendShares, "take", take)


TRANSFER_PLANTS: Final = (
    TransferPlant(mix_layers_up, "transfer_that_is_throttled"),
    TransferPlant(ask_for_ever, "transfer_from_peers_that_layer_differently"),
    TransferPlant(wait_for_ever, "transfer_of_which_one_source_stands_still"),
    TransferPlant(send_at_any_speed, "transfer_that_is_throttled"),
)
