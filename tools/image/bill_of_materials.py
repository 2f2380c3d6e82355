"""What an image is made of, as a CycloneDX document: Debian's packages, Python's, Spark's jars.

The facts come from the image itself, and the checksums that installation demanded from the lock.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from typing import Any, Final

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from tools.image.distil import STATUS_DIRECTORY
from tools.image.engine import ImageError
from tools.image.image_archive import ImageContent, ImageFile

# Any name of ours in this space gives the same identity to the same image.
_SPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "viewstamp/images")
_METADATA: Final = re.compile(r".*/[^/]+\.dist-info/METADATA")
_JAR: Final = re.compile(r".*/(?P<name>[^/]+?)-(?P<version>\d[^/]*)\.jar")
_LOCKED: Final = re.compile(
    r"^(?P<name>[\w.-]+)(?:\[[\w,-]+\])?==(?P<version>\S+).*\\\n(?P<hashes>(?: +--hash=\S+.*\n)+)",
    re.M,
)
# Lines of an invalid document that a developer is shown.
_COMPLAINT_CHARACTERS_MAX: Final = 500


def canonical(name: str) -> str:
    """Return the one spelling of a Python package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_hashes(lock: str) -> dict[tuple[str, str], list[str]]:
    """Return the SHA-256 of every file that a lock admits, by name and version of the package."""
    return {
        (canonical(entry["name"]), entry["version"]): re.findall(
            r"--hash=sha256:([0-9a-f]{64})", entry["hashes"]
        )
        for entry in _LOCKED.finditer(lock)
    }


def _python(file: ImageFile, hashes: dict[tuple[str, str], list[str]]) -> Component:
    """Return a Python package, with the checksums of the files that it may have come from."""
    fields = HeaderParser().parsestr(file.content.decode())
    name, version = canonical(fields["Name"]), fields["Version"]
    sums = sorted(hashes.get((name, version), ()))
    address = PackageURL("pypi", name=name, version=version)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=address,
        bom_ref=str(address),
        description=fields["Summary"],
        properties=[Property(name="viewstamp:license", value=text)]
        if (text := _license(fields))
        else [],
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(f"urn:sha256:{digest}"),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            )
            for digest in sums
        ],
    )


def _license(fields: Any) -> str:
    """Return what a package says about its licence, in one line."""
    return str(fields["License-Expression"] or fields["License"] or "").split("\n")[0].strip()


def _debian(entry: str) -> Component:
    """Return a Debian package, from dpkg's entry."""
    fields = HeaderParser().parsestr(entry)
    qualifiers = {"arch": fields["Architecture"], "distro": "debian-12"}
    address = PackageURL("deb", "debian", fields["Package"], fields["Version"], qualifiers)
    return Component(
        name=fields["Package"],
        version=fields["Version"],
        type=ComponentType.LIBRARY,
        purl=address,
        bom_ref=str(address),
        description=fields["Description"].split("\n")[0],
    )


def _jar(file: ImageFile, match: re.Match[str]) -> Component:
    """Return a library of Java, from the name of its file, with the checksum of that file."""
    return Component(
        name=match["name"],
        version=match["version"],
        type=ComponentType.LIBRARY,
        bom_ref=file.path,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file.sha256)],
    )


def components(
    files: Iterable[ImageFile], hashes: dict[tuple[str, str], list[str]]
) -> Iterator[Component]:
    """Yield what an image is made of."""
    for file in files:
        if file.path.startswith(f"{STATUS_DIRECTORY}/") and file.kind == "file":
            yield _debian(file.content.decode())
        elif _METADATA.fullmatch(file.path):
            yield _python(file, hashes)
        elif match := _JAR.fullmatch(file.path):
            yield _jar(file, match)


def bill_of_materials(name: str, version: str, image: ImageContent, lock: str) -> str:
    """Return the document. Raises ImageError if the schema does not admit it."""
    product = Component(
        name=name,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=image.digest.partition(":")[2])],
    )
    created = datetime.datetime.fromisoformat(image.configuration["created"])
    bom = Bom(
        serial_number=uuid.uuid5(_SPACE, image.digest),
        metadata=BomMetaData(component=product, timestamp=created),
        components=components(image.files, locked_hashes(lock)),
    )
    bom.register_dependency(product, bom.components)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    check(text)
    return text + "\n"


def check(text: str) -> None:
    """Hold a document against CycloneDX' schema. Raises ImageError with what is wrong."""
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        complaint = str(error)[:_COMPLAINT_CHARACTERS_MAX]
        raise ImageError(f"the bill of materials does not fit CycloneDX' schema: {complaint}")
