"""The consensus core of one replica, as its configuration and its directory make it."""

from __future__ import annotations

import random

from coordinator import vsr
from coordinator.app.config import Config
from coordinator.replica.bootstrap import initial_members_of
from coordinator.replica.data_directory import ReplicaFiles
from viewstamp.format.prepare import seal
from viewstamp.limits import FEATURE_LEVEL_MAX


def make_core(config: Config, files: ReplicaFiles) -> vsr.Replica:
    """Return the core, which knows nothing yet of what the disk holds."""
    configuration = vsr.Configuration(
        cluster_id=files.cluster_id,
        replica=config.replica_id,
        replica_count=config.replica_count,
        feature_level=FEATURE_LEVEL_MAX,
        standby_count=config.standby_count,
    )
    return vsr.Replica(
        configuration,
        seal=seal,
        read_initial_members=initial_members_of,
        jitter=lambda limit: random.randint(0, limit),
    )
