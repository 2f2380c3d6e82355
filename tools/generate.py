"""Generate `viewstamp/api` from `protos`, or check that the committed files match them.

The whole of `viewstamp/api` is output: `--check` reports every file that is absent, different or
not generated at all. Proto package paths equal Python package paths, so nothing is rewritten.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import google.rpc
import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorSet

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = Path("viewstamp/api")
INIT_TEXT = '"""Generated from `protos` by `make generate`; never edited."""\n'

# Imports come from our protos, from protoc's bundled types and from Google's common protos.
BUNDLED_PROTOS = Path(grpc_tools.__file__).parent / "_proto"
COMMON_PROTOS = Path(next(iter(google.rpc.__path__))).parents[1]


class ProtocError(Exception):
    """The protos do not compile; the message is protoc's own."""


def proto_files(protos: Path) -> list[str]:
    """Return every proto file below `protos`, relative to it, in a fixed order."""
    return sorted(path.relative_to(protos).as_posix() for path in protos.rglob("*.proto"))


def descriptor_set(protos: Path) -> FileDescriptorSet:
    """Return the descriptors of all protos and their imports, with comments.

    Raises ProtocError if they do not compile.
    """
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "descriptors.binpb"
        outputs = [f"--descriptor_set_out={output}", "--include_imports", "--include_source_info"]
        _protoc(protos, outputs, proto_files(protos))
        return FileDescriptorSet.FromString(output.read_bytes())


def render(protos: Path) -> dict[Path, bytes]:
    """Return the stubs that `protos` yield: path relative to the repository, and content."""
    files = proto_files(protos)
    ours = set(files)
    with_services = [f.name for f in descriptor_set(protos).file if f.service and f.name in ours]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        _protoc(protos, [f"--python_out={out}", f"--mypy_out={out}"], files)
        if with_services:
            outputs = [f"--grpc_python_out={out}", f"--mypy_grpc_out={out}"]
            _protoc(protos, outputs, with_services)
        return _with_packages(
            {
                path.relative_to(out): path.read_bytes()
                for path in sorted(out.rglob("*"))
                if path.is_file()
            }
        )


def drift(expected: dict[Path, bytes], root: Path) -> list[str]:
    """Return one line per file under `root` that differs from the expected stubs."""
    present = _present(root)
    lines = [f"{path}: not generated from any proto" for path in sorted(present - set(expected))]
    for path, content in expected.items():
        if path not in present:
            lines.append(f"{path}: missing")
        elif (root / path).read_bytes() != content:
            lines.append(f"{path}: differs from its proto")
    return lines


def write(expected: dict[Path, bytes], root: Path) -> None:
    """Make the stubs under `root` equal to the expected ones, touching only what differs."""
    for path in _present(root) - set(expected):
        (root / path).unlink()
    for path, content in expected.items():
        target = root / path
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def _protoc(protos: Path, outputs: list[str], files: list[str]) -> None:
    """Run protoc on the files; raise ProtocError with protoc's message if it fails."""
    bin_directory = Path(sys.executable).parent
    command = [sys.executable, "-m", "grpc_tools.protoc"]
    command += [f"--proto_path={path}" for path in (protos, BUNDLED_PROTOS, COMMON_PROTOS)]
    for plugin in ("protoc-gen-mypy", "protoc-gen-mypy_grpc"):
        command.append(f"--plugin={plugin}={bin_directory / plugin}")
    done = subprocess.run([*command, *outputs, *files], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProtocError(done.stderr.strip())


def _with_packages(stubs: dict[Path, bytes]) -> dict[Path, bytes]:
    """Return the stubs with an `__init__.py` in each of their directories below the output."""
    directories = {
        parent for path in stubs for parent in path.parents if parent.is_relative_to(OUTPUT)
    }
    inits = {directory / "__init__.py": INIT_TEXT.encode() for directory in directories}
    return dict(sorted({**stubs, **inits}.items()))


def _present(root: Path) -> set[Path]:
    """Return the files now below the output directory, relative to `root`, without caches."""
    return {
        path.relative_to(root)
        for path in (root / OUTPUT).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def main(arguments: list[str]) -> int:
    """Write the stubs, or with --check only compare; return 1 on drift or refused protos."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    options = parser.parse_args(arguments)
    try:
        expected = render(ROOT / "protos")
    except ProtocError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.check:
        write(expected, ROOT)
        return 0
    lines = drift(expected, ROOT)
    for line in lines:
        print(f"stub drift: {line}; run `make generate`", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
