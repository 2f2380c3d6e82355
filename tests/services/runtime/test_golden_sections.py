"""Sections written by the first build load to the same digests for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from services.runtime.installing import SectionInstallation
from services.runtime.machine import Machine
from tests.services.runtime.golden_sections import HISTORIES
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.format.layer import LayerReader, check_layer

GOLDEN: Final = Path(__file__).parent / "golden"
# Domain -> by generation: entities and state digest. These never change.
SECTIONS: Final[dict[str, list[tuple[int, str]]]] = {
    "users": [
        (5, "c482755acfebc00a2624f1f470e8932bf0e71081336d1a86f65db49df169bd1e"),
        (5, "6b487988326a3151133901eabdda56b3cf7e513ab603d48e32ffe6e0583476e2"),
    ],
    "streams": [
        (9, "23e577d4658bca66e795d259643296b84988a518b90fc007f0b94346778b0467"),
        (7, "1c5a0682fa4fb4a004ef975e604b86e079e96bfbabf929eacb8d16467c3a5fad"),
    ],
    "consumer_groups": [
        (6, "0b6b7013e75749edf0ba73d43e88957c26cbce2c73d86922b1c3e12f104c32be"),
        (7, "b96130da138c89329b928d636cc10c1a03922a165e4a8f11dfb3146411168a79"),
    ],
}


def layer(name: str, generation: int) -> LayerReader:
    """Return a layer of version 1, verified."""
    reader = check_layer((GOLDEN / f"{name}-{generation}.layer").read_bytes())
    assert (reader.header.section_version, reader.header.base_generation) == (1, generation - 1)
    return reader


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("name", SECTIONS)
def test_golden_section_loads(name: str, generation: int) -> None:
    """A base of version 1, and a delta with tombstones on it, load as they always did."""
    domain, _ = HISTORIES[name]
    entities, digest = SECTIONS[name][generation - 1]
    begin = pb.InstallBegin(
        generation=generation,
        sequence=1,
        section_version=1,
        state_digest=bytes.fromhex(digest),
        entities=entities,
        layers=generation,
    )
    installation = SectionInstallation(domain, begin)
    for index in range(generation):
        reader = layer(name, index + 1)
        for number in range(len(reader.blocks)):
            installation.add(pb.InstallBlock(layer=index, data=reader.read_block(number)))
    for _ in installation.loading():
        pass
    assert installation.installed is not None
    machine = Machine(domain)
    machine.activate(installation.installed)
    if domain.section.version == 1:  # later ones have other entities, and so another digest
        assert machine.state_digest().hex() == digest
