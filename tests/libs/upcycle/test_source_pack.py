"""A packed source comes back as it was, and an archive that is none is refused."""

import io
import zipfile
from pathlib import Path

import pytest

from upcycle.environment.source_files import SourceFiles, SourceLimits, read_source
from upcycle.environment.source_pack import pack_source, unpack_source, write_source
from upcycle.errors import SourceRefused

SOURCE = SourceFiles(
    Path("/a"), "shop/env.py", {"shop/env.py": b"import x\n", "shop/x.py": b"", "b.bin": b"\0" * 99}
)


def archive(comment: str, *names: str, method: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as opened:
        opened.comment = comment.encode()
        for name in names:
            opened.writestr(name, "x")
    return packed.getvalue()


def test_a_source_comes_back_with_its_digest_wherever_it_lies() -> None:
    again = unpack_source(pack_source(SOURCE), Path("/elsewhere"))
    assert (dict(again.files), again.entry, again.digest) == (SOURCE.files, SOURCE.entry, SOURCE.digest)
    assert pack_source(SOURCE) == pack_source(again)


def test_a_written_source_is_read_as_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "env.py").write_text("import helper\n")
    (tmp_path / "a" / "helper.py").write_text("")
    source = read_source(tmp_path / "a" / "env.py")
    write_source(unpack_source(pack_source(source), tmp_path / "b"))
    assert read_source(tmp_path / "b" / "env.py").digest == source.digest


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"", "cannot be read"),
        (pack_source(SOURCE)[:-30], "cannot be read"),
        (archive("entry ../env.py", "../env.py"), "outside its root"),
        (archive("entry /env.py", "/env.py"), "outside its root"),
        (archive("entry a", "a", "a//b"), "outside its root"),
        (archive("entry b", "a"), "does not hold its environment's file 'b'"),
        (archive("", "a"), "does not hold its environment's file ''"),
        (archive("entry a", "a", method=zipfile.ZIP_LZMA), "'a' is compressed by method 14"),
        (archive("entry a", "a", method=zipfile.ZIP_BZIP2), "'a' is compressed by method 12"),
    ],
)
def test_an_archive_that_is_no_source_is_refused(packed: bytes, why: str) -> None:
    with pytest.raises(SourceRefused, match=why):
        unpack_source(packed, Path("/"))


def test_an_archive_above_the_limits_is_refused_before_it_is_unpacked() -> None:
    bomb = SourceFiles(Path("/a"), "env.py", {"env.py": b"\0" * 10_000_000})
    for limits in (SourceLimits(total_bytes=1_000_000), SourceLimits(num_files=0)):
        with pytest.raises(SourceRefused, match="limits"):
            unpack_source(pack_source(bomb), Path("/"), limits)


def test_no_damaged_byte_is_more_than_refused() -> None:
    packed = pack_source(SOURCE)
    for place in range(len(packed)):
        damaged = bytearray(packed)
        damaged[place] ^= 0xFF
        try:
            unpack_source(bytes(damaged), Path("/b"))
        except SourceRefused:
            continue
