"""What may be on or off in the manifests: components of kustomize, switches of the chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Final, TypeAlias

Features: TypeAlias = frozenset[str]


@dataclass(frozen=True, slots=True)
class Feature:
    """The condition under which a chart has it, and the features that it needs."""

    condition: str
    needs: tuple[str, ...] = ()


FEATURES: Final[Mapping[str, Feature]] = MappingProxyType(
    {
        # Members that come need what several replicas need of each other.
        "several": Feature("(or (gt (int .Values.replicas) 1) .Values.members.enabled)"),
        "five": Feature("(eq (int .Values.replicas) 5)", ("several",)),
        "snapshotCopies": Feature(".Values.snapshotCopies.enabled"),
        "tls": Feature(".Values.tls.enabled"),
        "peerTls": Feature(".Values.peerTls.enabled", ("several",)),
        "metrics": Feature(".Values.metrics.enabled"),
        "traces": Feature(".Values.traces.enabled"),
        "servicesApart": Feature(".Values.servicesApart.enabled"),
        "prometheusOperator": Feature(".Values.prometheusOperator.enabled", ("metrics",)),
        "dashboard": Feature(".Values.dashboard.enabled", ("metrics",)),
        "certManager": Feature(".Values.certManager.enabled", ("tls",)),
        "certManagerPeers": Feature(".Values.certManagerPeers.enabled", ("peerTls",)),
        "certManagerServices": Feature(".Values.certManagerServices.enabled", ("servicesApart",)),
        "members": Feature(".Values.members.enabled", ("several",)),
        "logArchive": Feature(".Values.logArchive.enabled"),
        "logArchiveVolume": Feature(".Values.logArchiveVolume.enabled", ("logArchive",)),
        "logArchiveKey": Feature(".Values.logArchiveKey.enabled", ("logArchive",)),
        "restore": Feature(".Values.restore.enabled"),
        "restoreDryRun": Feature(".Values.restoreDryRun.enabled", ("restore",)),
        "archive": Feature(".Values.archive.enabled"),
        "analytics": Feature(".Values.analytics.enabled", ("archive",)),
        "analyticsTraces": Feature(".Values.analyticsTraces.enabled", ("analytics",)),
    }
)
# In the order in which they are applied; each is taken if all of these features are on.
COMPONENTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "replicas": ("several",),
        "five-replicas": ("five",),
        "snapshot-copies": ("snapshotCopies",),
        "tls": ("tls",),
        "peer-tls": ("peerTls",),
        "metrics": ("metrics",),
        "traces": ("traces",),
        "services-apart": ("servicesApart",),
        "services-apart-metrics": ("servicesApart", "metrics"),
        "services-apart-traces": ("servicesApart", "traces"),
        "prometheus-operator": ("prometheusOperator",),
        "services-apart-scraping": ("servicesApart", "prometheusOperator"),
        "grafana": ("dashboard",),
        "cert-manager": ("certManager",),
        "cert-manager-peers": ("certManagerPeers",),
        "cert-manager-services": ("certManagerServices",),
        "members": ("members",),
        "log-archive": ("logArchive",),
        "log-archive-volume": ("logArchiveVolume",),
        "log-archive-key": ("logArchiveKey",),
        "restore": ("restore",),
        "restore-three": ("restore", "several"),
        "restore-five": ("restore", "five"),
        "restore-copies": ("restore", "snapshotCopies"),
        "restore-copies-three": ("restore", "several", "snapshotCopies"),
        "restore-copies-five": ("restore", "five", "snapshotCopies"),
        "restore-volume": ("restore", "logArchiveVolume"),
        "restore-key": ("restore", "logArchiveKey"),
        "restore-snapshots": ("restore", "archive"),
        "restore-dry-run": ("restoreDryRun",),
        "archive": ("archive",),
        "archive-tls": ("archive", "tls"),
        "analytics": ("analytics",),
        "analytics-traces": ("analyticsTraces",),
    }
)


def components(chosen: Features) -> list[str]:
    """Return the components of kustomize that make these features, in order."""
    return [name for name, needed in COMPONENTS.items() if chosen.issuperset(needed)]


def closed(chosen: Iterable[str]) -> Features:
    """Return the features together with all that they need."""
    found: set[str] = set()
    waiting = list(chosen)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting.extend(FEATURES[name].needs)
    return frozenset(found)


def variants() -> list[Features]:
    """Return the combinations that the chart's templates are made of.

    They are none, each, every two, all, and all but one: conditions that fit them are conditions of
    few features. Tests compare other combinations.
    """
    names = list(FEATURES)
    chosen = [(), *((name,) for name in names), *combinations(names, 2), tuple(names)]
    found = {closed(some): None for some in chosen}
    for left_out in names:
        rest = closed(name for name in names if left_out not in closed([name]))
        found[rest] = None
    return list(found)
