"""What a chart's user may set beside the features: its place in the objects, and its default.

The defaults are what kustomize rendered: a chart without values is the manifests without overlay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from tools.manifests.kustomization import Objects
from tools.manifests.templates import Expression, Lines

# Path of a value and its default, as they are found.
Defaults = dict[str, Any]
SETTINGS: Final = "viewstamp-settings"
# Names of images in the manifests, and of the values that replace them.
_IMAGES: Final = {"viewstamp": "image", "viewstamp-analytics": "analytics.image"}
_NAMESPACE: Final = Expression("{{ .Release.Namespace }}")
_CHECKSUM: Final = Expression("{{ toJson .Values.settings | sha256sum }}")
_PODS: Final = Expression(
    "{{ if .Values.restore.enabled }}0{{ else }}"
    "{{ int (.Values.members.pods | default .Values.replicas) }}{{ end }}"
)
_FOUNDING: Final = Expression('"--replica-count={{ int .Values.replicas }}"')
_STORAGE_CLASS: Final = Lines(
    "{{- with .Values.storage.className }}\nstorageClassName: {{ quote . }}\n{{- end }}"
)
_POD_OPTIONS: Final = ("imagePullSecrets", "priorityClassName", "nodeSelector", "tolerations")
_MORE_NAMES: Final = Lines("{{- range .Values.certManager.dnsNames }}\n- {{ quote . }}\n{{- end }}")


def with_values(objects: Objects) -> Defaults:
    """Put expressions of Helm in the places of what may be set; return the defaults."""
    defaults: Defaults = {}
    for (kind, name), found in objects.items():
        found["metadata"]["namespace"] = _NAMESPACE
        for pod in _pod_specs(found):
            _set_in_pod(pod, defaults)
        for replace in _BY_OBJECT.get((kind, name), ()):
            replace(found, defaults)
    return defaults


def pod_template(found: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod template of an object, None if it makes no pods."""
    spec = found.get("spec", {})
    spec = spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec
    template: dict[str, Any] | None = spec.get("template")
    return template


def _pod_specs(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    template = pod_template(found)
    if template is not None:
        yield template["spec"]


def _set_in_pod(pod: dict[str, Any], defaults: Defaults) -> None:
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        _set_image(container, defaults)
        path = f"resources.{_camel(container['name'])}"
        defaults[path] = container["resources"]
        container["resources"] = Expression(f"{{{{ toJson .Values.{path} }}}}")
    for option in _POD_OPTIONS:
        text = f"{{{{- with .Values.pod.{option} }}}}\n{option}: {{{{ toJson . }}}}\n{{{{- end }}}}"
        pod[f"({option})"] = Lines(text)
        defaults[f"pod.{option}"] = _EMPTY[option]


def _set_image(container: dict[str, Any], defaults: Defaults) -> None:
    repository, _, tag = container["image"].partition(":")
    path = _IMAGES[repository]
    defaults |= {f"{path}.repository": repository, f"{path}.tag": tag, f"{path}.digest": ""}
    defaults["image.pullPolicy"] = container["imagePullPolicy"]
    text = f'{{{{ include "viewstamp.image" .Values.{path} | quote }}}}'
    container["image"] = Expression(text)
    container["imagePullPolicy"] = _value("image.pullPolicy")


_EMPTY: Final[dict[str, Any]] = {
    "imagePullSecrets": [],
    "priorityClassName": "",
    "nodeSelector": {},
    "tolerations": [],
}


def _value(path: str) -> Expression:
    return Expression(f"{{{{ .Values.{path} | quote }}}}")


def _camel(name: str) -> str:
    return re.sub(r"-(\w)", lambda found: found[1].upper(), name)


def _set_settings(found: dict[str, Any], defaults: Defaults) -> None:
    for key, text in found["data"].items():
        path = f"settings.{_camel(key)}"
        is_number = text.isdecimal()
        defaults[path] = int(text) if is_number else text
        # Helm reads numbers as floats, and would write large ones with an exponent.
        number = "int64 " if is_number else ""
        found["data"][key] = Expression(f"{{{{ {number}.Values.{path} | quote }}}}")


def _set_count(found: dict[str, Any], defaults: Defaults) -> None:
    """Have as many pods as there are members, or as many as the cluster was founded with."""
    defaults["members.pods"] = 0
    found["spec"]["replicas"] = _PODS


def _set_founding(found: dict[str, Any], defaults: Defaults) -> None:
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["args"][0].startswith("--replica-count="), container["args"][0]
    container["args"][0] = _FOUNDING


def _set_checksum(found: dict[str, Any], defaults: Defaults) -> None:
    found["spec"]["template"]["metadata"]["annotations"]["checksum/settings"] = _CHECKSUM


def _set_claims(found: dict[str, Any], defaults: Defaults) -> None:
    for claim in found["spec"]["volumeClaimTemplates"]:
        is_data = claim["metadata"]["name"] == "data"
        _set_claim(claim, "storage.size" if is_data else "snapshotCopies.size", defaults)


def _set_claim(claim: dict[str, Any], path: str, defaults: Defaults) -> None:
    requests = claim["spec"]["resources"]["requests"]
    defaults |= {path: requests["storage"], "storage.className": ""}
    requests["storage"] = _value(path)
    claim["spec"]["(storageClassName)"] = _STORAGE_CLASS


def _set_scraper(found: dict[str, Any], defaults: Defaults) -> None:
    _set_namespace(found["spec"]["ingress"][0]["from"], "metrics.namespace", defaults)


def _set_collector(found: dict[str, Any], defaults: Defaults) -> None:
    _set_namespace(found["spec"]["egress"][0]["to"], "traces.namespace", defaults)


def _set_namespace(peers: list[Any], path: str, defaults: Defaults) -> None:
    labels = peers[0]["namespaceSelector"]["matchLabels"]
    defaults[path] = labels["kubernetes.io/metadata.name"]
    labels["kubernetes.io/metadata.name"] = _value(path)


def _set_endpoint(found: dict[str, Any], defaults: Defaults) -> None:
    prefix = "--otlp-endpoint="
    pod = found["spec"]["template"]["spec"]
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        for number, argument in enumerate(container["args"]):
            if argument.startswith(prefix):
                defaults["traces.endpoint"] = argument.removeprefix(prefix)
                text = f'"{prefix}{{{{ .Values.traces.endpoint }}}}"'
                container["args"][number] = Expression(text)


def _set_schedule(feature: str, found: dict[str, Any], defaults: Defaults) -> None:
    defaults[f"{feature}.schedule"] = found["spec"]["schedule"]
    found["spec"]["schedule"] = _value(f"{feature}.schedule")


def _set_size(feature: str, found: dict[str, Any], defaults: Defaults) -> None:
    _set_claim(found, f"{feature}.size", defaults)


def _set_access(found: dict[str, Any], defaults: Defaults) -> None:
    _set_claim(found, "logArchiveVolume.size", defaults)
    (defaults["logArchiveVolume.accessMode"],) = found["spec"]["accessModes"]
    found["spec"]["accessModes"] = [_value("logArchiveVolume.accessMode")]


def _set_store(found: dict[str, Any], defaults: Defaults) -> None:
    (port,) = found["spec"]["egress"][0]["ports"]
    defaults["logArchive.port"] = port["port"]
    port["port"] = Expression("{{ int .Values.logArchive.port }}")


def _set_founders(found: dict[str, Any], defaults: Defaults) -> None:
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["args"][3].startswith("--replicas="), container["args"][3]
    container["args"][3] = Expression('"--replicas={{ int .Values.replicas }}"')


def _set_names(found: dict[str, Any], defaults: Defaults) -> None:
    names = found["spec"]["dnsNames"]
    for number, name in enumerate(names):
        text = re.sub(r"\.viewstamp(\.svc)?$", r".{{ .Release.Namespace }}\1", name)
        names[number] = Expression(f'"{text}"')
    names.append(_MORE_NAMES)
    defaults["certManager.dnsNames"] = []


_BY_OBJECT: Final[dict[tuple[str, str], tuple[Callable[[dict[str, Any], Defaults], None], ...]]] = {
    ("ConfigMap", SETTINGS): (_set_settings,),
    ("StatefulSet", "viewstamp"): (
        *(_set_count, _set_checksum, _set_claims, _set_endpoint, _set_founding),
    ),
    ("StatefulSet", "viewstamp-services"): (_set_count, _set_checksum, _set_endpoint),
    ("NetworkPolicy", "viewstamp-metrics"): (_set_scraper,),
    ("NetworkPolicy", "viewstamp-services-metrics"): (_set_scraper,),
    ("NetworkPolicy", "viewstamp-traces"): (_set_collector,),
    ("NetworkPolicy", "viewstamp-services-traces"): (_set_collector,),
    ("PersistentVolumeClaim", "viewstamp-archive"): (partial(_set_size, "archive"),),
    ("PersistentVolumeClaim", "viewstamp-analysis"): (partial(_set_size, "analytics"),),
    ("CronJob", "viewstamp-archive"): (partial(_set_schedule, "archive"),),
    ("CronJob", "viewstamp-analysis"): (partial(_set_schedule, "analytics"),),
    ("Certificate", "viewstamp-tls"): (_set_names,),
    ("PersistentVolumeClaim", "viewstamp-log-archive"): (_set_access,),
    ("NetworkPolicy", "viewstamp-log-archive"): (_set_store,),
    ("NetworkPolicy", "viewstamp-restore"): (_set_store,),
    **{("Job", f"viewstamp-restore-{pod}"): (_set_founders,) for pod in range(5)},
    **{
        ("PersistentVolumeClaim", f"data-viewstamp-{pod}"): (partial(_set_size, "storage"),)
        for pod in range(5)
    },
    **{
        ("PersistentVolumeClaim", f"copy-{copy}-viewstamp-{pod}"): (
            partial(_set_size, "snapshotCopies"),
        )
        for copy in (1, 2)
        for pod in range(5)
    },
}
