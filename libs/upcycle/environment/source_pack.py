"""An environment's source as one archive, the same bytes for the same source, and back."""

import io
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Final

from upcycle.environment.source_files import LIMITS, SourceFiles, SourceLimits
from upcycle.errors import SourceRefused

_ENTRY: Final = "entry "
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_DAMAGED: Final = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, OSError,
)  # fmt: skip


def pack_source(source: SourceFiles) -> bytes:
    """A zip archive of it, whose comment names the environment's file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = f"{_ENTRY}{source.entry}".encode()
        for name in sorted(source.files):
            row = zipfile.ZipInfo(name, date_time=_EPOCH)
            row.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(row, source.files[name])
    return packed.getvalue()


def unpack_source(packed: bytes, root: Path, limits: SourceLimits = LIMITS) -> SourceFiles:
    """The source as if it lay below root; nothing is written. Raises SourceRefused for what is no such
    archive, is larger than the limits, or names a file outside its root."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            comment, rows = archive.comment.decode(), archive.infolist()
            total = sum(row.file_size for row in rows)
            if len(rows) > limits.num_files or total > limits.total_bytes:
                raise SourceRefused(
                    f"a packed source has {len(rows)} files of {total} bytes, limits {limits.num_files} and "
                    f"{limits.total_bytes}"
                )
            files = {_safe(row): archive.read(row) for row in rows}
    except _DAMAGED as error:
        if isinstance(error, SourceRefused):
            raise
        raise SourceRefused(f"a packed source cannot be read: {error}") from error
    entry = comment.removeprefix(_ENTRY)
    if entry not in files or len(files) != len(rows):
        raise SourceRefused(f"a packed source does not hold its environment's file {entry!r:.200} once")
    return SourceFiles(root, entry, files)


def write_source(source: SourceFiles) -> None:
    """Lay its files below its root, readable to every user: episodes may run as another one, and a service
    makes its files its own user's alone."""
    source.root.mkdir()
    for name, content in source.files.items():
        path = source.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for path in (source.root, *source.root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _safe(row: zipfile.ZipInfo) -> str:
    """Its name. Other methods than those of `pack_source` may take any amount of memory for a few bytes."""
    name, path = row.filename, PurePosixPath(row.filename)
    if row.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise SourceRefused(f"the packed file {name!r:.200} is compressed by method {row.compress_type}")
    if path.is_absolute() or ".." in path.parts or str(path) != name or "\\" in name or "\0" in name:
        raise SourceRefused(f"a packed source names the file {name!r:.200}, outside its root")
    return name
