"""`python -m testkit.world.guards`: guards taken out of the shipped programs, one after the other.

For every known pitfall of the protocol and every checker there is a planted bug. Each is run with
options that make its moment likely, from seed 1 on, until a run fails.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from testkit.campaigns.fingerprint import fingerprint
from testkit.campaigns.plants import PlantCampaign
from testkit.plants.verdict import Verdict, key
from testkit.world.plant import look
from testkit.world.planted_bugs import PLANTS
from testkit.world.planted_guards import GUARDS

ENTRY: Final = "testkit.world.guards"
ALL: Final = (*GUARDS, *PLANTS)


def run_plant(name: str) -> Verdict:
    """Run one plant, from the first seed on."""
    plant = next(each for each in ALL if key(each) == name)
    return look(plant, range(1, plant.seeds_max + 1))


CAMPAIGN: Final = PlantCampaign(
    "python -m testkit.world.guards", ALL, run_plant, partial(fingerprint, ENTRY), "guards"
)

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main(sys.argv[1:]))
