"""Holds an image against the rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tools.image.image_archive import ImageContent, ImageFile
from tools.image.scan_rules import EXCEPTIONS, RULES

# Lines that a user is shown; a base without any care would fill pages.
FINDINGS_MAX: Final = 50
_SECRET_VARIABLE: Final = re.compile(
    r"(?i)[a-z_]*(password|secret|token|credential|api_?key)[a-z_]*=.+"
)


def refused_files(name: str, files: Iterable[ImageFile]) -> Iterator[str]:
    """Yield a line for each path that a rule refuses in the image of this name."""
    allowed = EXCEPTIONS.get(name, {})
    for file in files:
        for rule in RULES:
            if rule.refuses(file) and file.path not in allowed.get(rule.name, ()):
                yield f"{file.path}: {rule.name}: {rule.remedy}"


def refused_settings(configuration: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each setting, as the OCI names it, that is not as it should be."""
    settings = configuration.get("config", {})
    user = str(settings.get("User", ""))
    if re.fullmatch(r"[1-9]\d*:[1-9]\d*", user) is None:
        yield f"user {user!r}: run as a user and a group by number, and not as root"
    for variable in settings.get("Env", []):
        if _SECRET_VARIABLE.fullmatch(variable):
            yield f"variable {variable.partition('=')[0]}: mount secrets when the container starts"
    for step in configuration.get("history", []):
        if _SECRET_VARIABLE.search(step.get("created_by", "")):
            yield "the history has a secret: give it to the build as a mounted file"


def findings(name: str, image: ImageContent) -> list[str]:
    """Return a line for each thing that should not be in an image; at most FINDINGS_MAX of them."""
    found = [*refused_settings(image.configuration), *refused_files(name, image.files)]
    rest = len(found) - FINDINGS_MAX
    return found[:FINDINGS_MAX] + ([f"and {rest} more"] if rest > 0 else [])
