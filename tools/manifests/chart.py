"""Makes the files of the Helm chart from what kustomize renders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tools.manifests.features import FEATURES, Features, variants
from tools.manifests.kustomization import Objects, variant
from tools.manifests.merging import condition_of, merged
from tools.manifests.templates import template_of
from tools.manifests.values import with_values

HEADER: Final = "# Made from deploy/ by `make manifests`; never edited.\n"
REPLICA_COUNTS: Final = (1, 3, 5)
# 7 replicas with a vote, and 6 standbys.
PODS_MAX: Final = 13
# What the values of a chart are for, by the first part of their path.
_COMMENTS: Final[Mapping[str, str]] = {
    "image": "The image of all containers but the analysis; a digest is taken instead of the tag.",
    "replicas": "1, 3 or 5: fixed when the cluster is bootstrapped. 3 and 5 need the ConfigMap"
    " viewstamp-cluster.",
    "members": "Members come and go by `viewstamp replica`: pods is how many there are (0: as many"
    " as replicas). Needs the ConfigMap viewstamp-cluster; never switch it off again.",
    "settings": "What may change while the cluster lives; a change is rolled out pod by pod.",
    "storage": "The volume of each replica, and the class of all volumes (empty: the default one).",
    "resources": "Of each container. Memory is requested whole, processor time has no limit.",
    "pod": "For the pods of all kinds.",
    "snapshotCopies": "Two more volumes, for copies of snapshots. Choose before the first start.",
    "tls": "TLS for clients: needs the Secret viewstamp-tls, or certManager.",
    "peerTls": "TLS between replicas: needs the Secret viewstamp-peer-tls, or certManagerPeers.",
    "certManager": "Certificates for clients by cert-manager; dnsNames are further names.",
    "certManagerPeers": "Certificates between replicas by cert-manager.",
    "servicesApart": "Services in pods of their own: needs the Secrets viewstamp-service-tls and"
    " viewstamp-coordinator-tls, or certManagerServices.",
    "certManagerServices": "Certificates between replicas and their services by cert-manager.",
    "metrics": "Pages for Prometheus, which this namespace may read.",
    "prometheusOperator": "PodMonitor and PrometheusRule.",
    "dashboard": "A dashboard for Grafana's sidecar.",
    "traces": "Where traces are sent, and the namespace of the collector.",
    "logArchive": "Ships the log and snapshots to an archive: needs the ConfigMap and the Secret"
    " viewstamp-log-archive. port is the store's.",
    "logArchiveVolume": "The archive is a directory of a volume, which all replicas write to.",
    "logArchiveKey": "Encrypts the archive: needs the Secret viewstamp-log-archive-key.",
    "restore": "Founds a new cluster by jobs, while there are no pods: needs the ConfigMap"
    " viewstamp-restore. Switch it off once they are complete.",
    "restoreDryRun": "The jobs only say what would be restored.",
    "archive": "A daily download of the newest snapshot: needs the Secret viewstamp-archive.",
    "analytics": "A nightly analysis of the archive, by an image of its own.",
    "analyticsTraces": "The analysis reads traces, too: needs the claim viewstamp-traces.",
}


# Helm can ask the cluster while it installs or upgrades, and not while it only renders. The number
# with which the coordinator was started counts: a set can be scaled to 0 for a backup.
_SAME_COUNT: Final = """\
{{- $count := printf "--replica-count=%d" (int .Values.replicas) }}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace "viewstamp" }}
{{- range (index .spec.template.spec.containers 0).args }}
{{- if and (hasPrefix "--join-as=" .) (not $.Values.members.enabled) }}
{{- fail "members of the cluster here may have changed: keep members.enabled" }}
{{- end }}
{{- if and (hasPrefix "--replica-count=" .) (ne . $count) }}
{{- fail (printf "replicas is %d, and the cluster here was created with %s: it cannot change"\
 (int $.Values.replicas) (trimPrefix "--replica-count=" .)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.members.pods (not .Values.members.enabled) }}
{{- fail "members.pods needs members.enabled: without it there are as many pods as replicas" }}
{{- end }}
"""


def chart_files(kustomize: str, deploy: Path) -> dict[Path, str]:
    """Return the generated files of the chart by their paths in it.

    Raises RenderError, or MergeError if the manifests differ in a way that a chart cannot say.
    """
    defaults: dict[str, Any] = {}
    rendered: dict[Features, Objects] = {}
    for chosen in variants():
        rendered[chosen] = variant(kustomize, deploy, chosen)
        defaults |= with_values(rendered[chosen])
    values = _values(defaults)
    return {
        **{Path("templates", name): text for name, text in _templates(rendered).items()},
        Path("templates", "requirements.yaml"): _requirements(),
        Path("values.yaml"): _values_text(values),
        Path("values.schema.json"): json.dumps(_schema(values), indent=2) + "\n",
    }


def _templates(rendered: Mapping[Features, Objects]) -> dict[str, str]:
    found = {}
    for key in sorted({key for objects in rendered.values() for key in objects}):
        having = {chosen: objects[key] for chosen, objects in rendered.items() if key in objects}
        text = template_of(merged(having))
        condition = condition_of(having.keys(), rendered.keys())
        if condition is not None:
            text = f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"
        found[_file_name(*key)] = HEADER + text
    return found


def _file_name(kind: str, name: str) -> str:
    words = re.sub(r"(?<=[a-z])([A-Z])", r"-\1", kind).lower()
    rest = name.removeprefix("viewstamp").strip("-")
    return f"{words}-{rest}.yaml" if rest else f"{words}.yaml"


def _requirements() -> str:
    lines = [HEADER + "# Renders nothing, or the reason why the values do not fit together."]
    for name, feature in FEATURES.items():
        for needed in feature.needs:
            condition = f"and {feature.condition} (not {FEATURES[needed].condition})"
            text = f"{_shown(name)} needs {_shown(needed)}"
            lines.append(f'{{{{- if {condition} }}}}{{{{ fail "{text}" }}}}{{{{- end }}}}')
    return "\n".join([*lines, _SAME_COUNT])


def _shown(name: str) -> str:
    return {"several": "replicas: 3 or 5, or members", "five": "replicas: 5"}.get(
        name, f"{name}.enabled"
    )


def _values(defaults: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"replicas": REPLICA_COUNTS[0]}
    for name in FEATURES:
        if name not in ("several", "five"):
            values[name] = {"enabled": False}
    for path, default in defaults.items():
        *parents, last = path.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = default
    return {name: values[name] for name in _COMMENTS}


def _values_text(values: Mapping[str, Any]) -> str:
    parts = [HEADER]
    for name, value in values.items():
        parts.append(f"\n# {_COMMENTS[name]}\n{yaml.safe_dump({name: value}, sort_keys=False)}")
    return "".join(parts)


def _schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema that refuses a misspelt name and a value of another type."""
    schema = _schema_of(values)
    schema["properties"]["replicas"] = {"enum": list(REPLICA_COUNTS)}
    pods = {"type": "integer", "minimum": 0, "maximum": PODS_MAX}
    schema["properties"]["members"]["properties"]["pods"] = pods
    schema["properties"]["resources"] = _open({name: _open({}) for name in values["resources"]})
    schema["properties"]["pod"]["properties"]["nodeSelector"] = _open({})
    # Helm itself puts this in, for charts that others include.
    schema["properties"]["global"] = _open({})
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


def _open(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties} if properties else {"type": "object"}


def _schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        properties = {name: _schema_of(one) for name, one in value.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}
    types = {bool: "boolean", int: "integer", str: "string", list: "array"}
    return {"type": types[type(value)]}
