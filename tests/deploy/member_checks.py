"""Whether pods may come and go as members do, and the policy knows of which clusters that holds.

A check may raise LookupError, ValueError or AssertionError where what it looks for is not there.
"""

from __future__ import annotations

from typing import Final

import coordinator.app.config
from tests.deploy.manifest_checks import Objects, spec_of
from tests.deploy.pod import Object, arguments, overlay
from tests.deploy.pod import coordinator as coordinator_of
from viewstamp.certificates.proven_names import coordinator_name, service_name
from viewstamp.format.epoch_members import STANDBYS_MAX, VOTERS_MAX
from viewstamp.routing import SERVICE_NAMES

PODS_MAX: Final = VOTERS_MAX + STANDBYS_MAX
# Ids that certificates name: more than there are pods, since none is given again.
CERTIFIED_IDS: Final = 16
MARK: Final = "viewstamp/members"


def asks_for_its_id(objects: Objects) -> bool:
    """Return whether each pod asks at least two others, by the address that they know it by."""
    return all(_asks(coordinator_of(objects), pod) for pod in range(PODS_MAX))


def _asks(container: Object, pod: int) -> bool:
    peers = coordinator.app.config.parse(arguments(container, pod)).peers
    assert peers is not None
    own = f"viewstamp-{pod}.viewstamp-headless:{peers.listen.rpartition(':')[2]}"
    other = coordinator.app.config.parse(arguments(container, (pod + 1) % PODS_MAX)).peers
    assert other is not None
    named = [address for replica, address in other.addresses.items() if replica == pod]
    return (
        peers.asks_id
        and peers.own_address == own
        # Founders know each other by flags alone: by the very address that the pod asks with.
        and named in ([], [own])
        and own not in peers.addresses.values()
        and len(peers.addresses) >= 2
    )


def is_marked_for_the_policy(objects: Objects) -> bool:
    """Return whether every set has the mark by which the policy lets its pods come and go."""
    policy = spec_of(overlay("namespace"), "ValidatingAdmissionPolicy", "viewstamp-replica-count")
    asked = {one["name"]: one["expression"] for one in policy["variables"]}
    sets = [found for (kind, _), found in objects.items() if kind == "StatefulSet"]
    return (
        all(MARK in found["metadata"]["annotations"] for found in sets)
        and all(f"'{MARK}'" in asked[name] for name in ("changes", "stays"))
        and f"variables.wanted <= {PODS_MAX}" in asked["possible"]
    )


def certifies_later_replicas(objects: Objects) -> bool:
    """Return whether certificates name the replicas that come after others were removed."""
    names = spec_of(objects, "Certificate", "viewstamp-peer-tls")["dnsNames"]
    return {f"replica-{replica}.viewstamp" for replica in range(CERTIFIED_IDS)} == set(names)


def certifies_later_services(objects: Objects) -> bool:
    """Return whether certificates name the services of replicas that come later."""
    coordinators, services = (
        spec_of(objects, "Certificate", name)["dnsNames"]
        for name in ("viewstamp-coordinator-tls", "viewstamp-service-tls")
    )
    replicas = range(CERTIFIED_IDS)
    return set(coordinators) == set(map(coordinator_name, replicas)) and set(services) == {
        service_name(service, replica) for service in SERVICE_NAMES for replica in replicas
    }
