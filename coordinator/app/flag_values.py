"""Values of the coordinator's flags that are more than a number or a path."""

from __future__ import annotations

from coordinator.base.errors import ConfigError
from viewstamp.limits import CLUSTER_ID_BYTES
from viewstamp.routing import SERVICE_NAMES


def services_of(values: list[str]) -> dict[str, str]:
    """Return the target of each service by its name. Raises ConfigError."""
    services = {}
    for value in values:
        name, separator, target = value.partition("=")
        if not separator or not target or name not in SERVICE_NAMES:
            raise ConfigError(
                f"--service {value}: write NAME=TARGET with NAME one of {', '.join(SERVICE_NAMES)}"
            )
        services[name] = target
    missing = [name for name in SERVICE_NAMES if name not in services]
    if missing:
        raise ConfigError(f"--service is missing for {', '.join(missing)}")
    return services


def cluster_id_of(text: str | None) -> bytes | None:
    """Return the id that hexadecimal digits stand for, None for none. Raises ConfigError."""
    if text is None:
        return None
    try:
        cluster_id = bytes.fromhex(text)
    except ValueError:
        cluster_id = b""
    if len(cluster_id) != CLUSTER_ID_BYTES:
        raise ConfigError(f"--cluster-id is {text!r}: it has {2 * CLUSTER_ID_BYTES} hex digits")
    return cluster_id
