"""`python -m testkit.simulation.guards`: the guards of the protocol, taken out one after the other.

For every known pitfall and every checker there is a planted bug. Each is run with the seeds of a
campaign, from the first on, until one fails: what the table says is what a campaign would need.
"""

from __future__ import annotations

import sys
from typing import Final

from testkit.plants.campaign import PlantCampaign
from testkit.plants.verdict import Verdict, key
from testkit.simulation.fingerprint import fingerprint
from testkit.simulation.plant import look
from testkit.simulation.planted_bugs import PLANTS
from testkit.simulation.planted_guards import GUARDS

ALL: Final = (*GUARDS, *PLANTS)


def run_plant(name: str) -> Verdict:
    """Run one plant, from the first seed on."""
    plant = next(each for each in ALL if key(each) == name)
    return look(plant, range(1, plant.seeds_max + 1))


CAMPAIGN: Final = PlantCampaign(
    "python -m testkit.simulation.guards", ALL, run_plant, fingerprint, "guards"
)

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main(sys.argv[1:]))
