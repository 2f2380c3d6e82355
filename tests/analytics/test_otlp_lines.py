"""Files are found, split and read so that every line is seen once, under its number."""

from __future__ import annotations

import gzip
import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from analytics.otlp import files, lines

LINES = [b'{"n":%d}' % number for number in range(5000)]
TEXT = b"\n".join(LINES) + b"\n"


def read(split: files.Split) -> list[tuple[int | None, str, str | None]]:
    """Return number, text and problem of each line of the split."""
    rows = []
    for batch in lines.number(lines.read(split)):
        columns = (batch.column(name).to_pylist() for name in ("line_number", "text", "problem"))
        rows += list(zip(*columns, strict=True))
    return rows


@given(
    text=st.lists(st.sampled_from([b"", b"a", b"bc", b"\n", b"\n\n", b"d\n"])).map(b"".join),
    cuts=st.lists(st.integers(0, 40)),
)
def test_every_line_is_in_one_split(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, cuts: list[int]
) -> None:
    """Wherever a file is split, each line is read once, whole, and under its number."""
    path = tmp_path_factory.getbasetemp() / "split.jsonl"
    path.write_bytes(text)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    rows = []
    for start, end in itertools.pairwise(bounds):
        rows += read(files.Split(str(path), files.PLAIN, start, end))
    expected = text.decode().splitlines(keepends=True)
    assert rows == [(number, line, None) for number, line in enumerate(expected, start=1)]


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.jsonl.gz", gzip.compress),
        ("a.jsonl.zst", zstandard.compress),
        (
            "frames.jsonl.zst",
            lambda text: b"".join(map(zstandard.compress, (text[:99], text[99:]))),
        ),
        ("members.jsonl.gz", lambda text: gzip.compress(text[:99]) + gzip.compress(text[99:])),
        ("misnamed.jsonl", zstandard.compress),
        ("mark.jsonl", lambda text: lines.BYTE_ORDER_MARK + text),
    ],
)
def test_compression_changes_nothing(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    """However a file is compressed and whatever its name says, its lines are the same."""
    (tmp_path / name).write_bytes(compress(TEXT))
    (group,) = files.plan([tmp_path]).tasks
    (split,) = group
    assert [text for _, text, _ in read(split)] == [f"{line.decode()}\n" for line in LINES]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_cut_archive_gives_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes]
) -> None:
    """A truncated compressed file keeps the lines before its end, and the loss is a row."""
    monkeypatch.setattr(lines, "COMPRESSED_BLOCK_BYTES", 1024)
    texts = [f"{hashlib.sha256(line).hexdigest()}\n" for line in LINES]
    path = tmp_path / "cut.jsonl"
    path.write_bytes(compress("".join(texts).encode())[:-20])
    (group,) = files.plan([tmp_path]).tasks
    rows = read(group[0])
    assert len(rows) > 100
    assert [text for _, text, _ in rows[:-1]] == texts[: len(rows) - 1]
    assert rows[-1][2] == lines.UNREADABLE


def test_absent_file_is_one_row(tmp_path: Path) -> None:
    """A file that cannot be opened is one row about the whole file."""
    ((number, text, problem),) = read(files.Split(str(tmp_path / "no.jsonl"), files.PLAIN, 0, 9))
    assert (number, problem) == (0, lines.UNREADABLE)
    assert "No such file" in text


def test_overlong_line_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line beyond the limit is not held in memory: one row reports it; the others are read."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    monkeypatch.setattr(lines.Blocks.__init__, "__defaults__", (40,))
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"first\n" + b"x" * 200 + b"\nlast\n")
    rows = read(files.Split(str(path), files.PLAIN, 0, path.stat().st_size))
    assert [(number, problem) for number, _, problem in rows] == [
        (1, None),
        (2, lines.TOO_LONG),
        (3, None),
    ]


def test_files_are_found_by_folder(tmp_path: Path) -> None:
    """Files of any name below a folder are taken, hidden ones are not."""
    wanted = [
        "a/traces.jsonl",
        "a/traces-20261120T000001Z.jsonl.zst",
        "b/traces.jsonl.1",
        "c.jsonl.gz",
        "manifest.json",
        "b/export",
    ]
    others = ["a/.traces.jsonl", ".hidden/traces.jsonl"]
    for name in (*wanted, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files.find([tmp_path]) == sorted(tmp_path / name for name in wanted)
    assert files.find([tmp_path / "manifest.json"]) == [tmp_path / "manifest.json"]


def test_no_input_says_what_was_expected(tmp_path: Path) -> None:
    """An empty directory, and one where nothing can be opened, are errors of one line."""
    with pytest.raises(files.NoInputError, match=r"no OTLP JSON lines,.*name the directory"):
        files.plan([tmp_path])
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    with pytest.raises(files.NoInputError, match=r"none of the 1 files .*No such file"):
        files.plan([tmp_path])


def test_small_files_share_a_task() -> None:
    """Thousands of small files are few tasks, and each split is in one of them."""
    small = [files.Split(str(number), files.PLAIN, 0, 10) for number in range(2500)]
    large = files.split("large", files.PLAIN, 0, 3 * files.SPLIT_BYTES)
    groups = files.tasks([*small, *large])
    assert [len(group) for group in groups] == [1, 1, 1, 1000, 1000, 500]
    assert {piece for group in groups for piece in group} == {*small, *large}
