"""A replica that was added while the cluster ran: what it has to learn before it can start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from coordinator.app.config import Config
from coordinator.base.clock import monotonic_ms
from coordinator.base.errors import ConfigError
from coordinator.journal.superblock import Superblock
from coordinator.peers.introduction import Introduction, Newcomer, introduced
from coordinator.peers.settings import PeerTls
from coordinator.peers.tls import load_credentials
from coordinator.replica.data_directory import SUPERBLOCK_FILE, ReplicaFiles
from coordinator.storage import Storage
from viewstamp.certificates.pem_files import Certificates


def joins(config: Config) -> bool:
    """Return whether flags say that the cluster runs already."""
    return config.peers is not None and config.peers.joins


async def introduction_of(config: Config, storage: Storage) -> Introduction | None:
    """Ask the others about the cluster, if this replica joins it and has no superblock.

    Waits until one of them answers. With a superblock nobody is asked: all replicas of a cluster
    may start at once, and would wait for each other. Raises ConfigError.
    """
    settings = config.peers
    if settings is None or not settings.joins:
        return None
    if storage.exists(str(config.data_directory / SUPERBLOCK_FILE)):
        return None
    certificates = _latest(settings.tls)
    newcomer = (
        Newcomer(0, settings.own_address) if settings.asks_id else Newcomer(config.replica_id)
    )
    return await introduced(newcomer, settings.addresses, certificates, monotonic_ms)


def identified(config: Config, storage: Storage, told: Introduction | None) -> Config:
    """Return the configuration with the id that flags need not say: the one that the directory
    keeps, or that others told. Raises ConfigError and what reading a superblock raises."""
    settings = config.peers
    if settings is None or not settings.asks_id:
        return config
    if told is None:
        path = str(config.data_directory / SUPERBLOCK_FILE)
        found: int | None = Superblock.read(storage, path).replica_id
    else:
        found = Newcomer(0, settings.own_address).among(told.members)
    assert found is not None, "nobody is introduced who is no member"
    others = {replica: each for replica, each in settings.addresses.items() if replica != found}
    return replace(config, replica_id=found, peers=replace(settings, addresses=others))


def _latest(tls: PeerTls | None) -> Callable[[], Certificates | None]:
    """Return what reads the certificates as they are now, or as they last were of use.

    Raises ConfigError if they are of no use from the start.
    """
    if tls is None:
        return lambda: None
    known = load_credentials(tls)

    def latest() -> Certificates:
        nonlocal known
        with suppress(ConfigError):  # they are being replaced
            known = load_credentials(tls)
        return known

    return latest


def placed(config: Config, files: ReplicaFiles, told: Introduction | None) -> Config:
    """Return the configuration with the counts of the founding, which flags need not say.

    They matter in the first epoch alone. There the directory says how many voters there were.
    """
    settings = config.peers
    if settings is None or not settings.joins:
        return config
    state = files.superblock.state
    if told is not None:
        standby_count = told.standby_count
    elif state.members is None:
        standby_count = settings.standbys_beside(state.replica_count, config.replica_id)
    else:
        standby_count = 0
    return replace(
        config,
        replica_count=state.replica_count,
        standby_count=standby_count,
        peers=replace(settings, standby_count=standby_count),
        introduction=told,
    )
