"""Which files of an environment changed: those of its source, and what else is watched."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from upcycle.environment.source_files import read_source
from upcycle.errors import UnknownName

POLL_S: Final = 0.3
MAX_FILES: Final = 2000
_Seen = dict[Path, tuple[int, int, int] | None]


class Watcher:
    """Asks for the state of each file every POLL_S seconds: works on every file system, and needs no more
    files open."""

    def __init__(self, source: Path, watched: Sequence[Path]) -> None:
        """Raises UnknownName for a watched path that does not exist."""
        for path in watched:
            if not path.exists():
                raise UnknownName(f"no such file or folder: {path}", "watch what is there")
        self._source = source.resolve()
        self._watched = [path.resolve() for path in watched]
        self._files: set[Path] = {self._source}
        self._seen: _Seen = {}

    def look(self) -> list[str]:
        """Names of files that are not as they were at the last look; of new and removed ones too."""
        seen: _Seen = {path: _state_of(path) for path in (*self._files, *self._below_watched())}
        before, self._seen = self._seen, seen
        return sorted(path.name for path in seen | before if seen.get(path) != before.get(path))

    def read_again(self) -> None:
        """Find out which files belong to the source now; of one that cannot be read, keep those known."""
        try:
            source = read_source(self._source)
        except Exception:  # what is wrong is shown when it is loaded
            self._files.add(self._source)
        else:
            self._files = {source.root / name for name in source.files}
        self.look()

    async def next_change(self, stop: asyncio.Event) -> list[str]:
        """Wait until a file changed and has been as it is for POLL_S; empty when `stop` is set."""
        changed: set[str] = set()
        while not stop.is_set():
            try:
                async with asyncio.timeout(POLL_S):
                    await stop.wait()
            except TimeoutError:
                now = self.look()
                if changed and not now:
                    return sorted(changed)
                changed.update(now)
        return []

    def _below_watched(self) -> Iterator[Path]:
        for path in self._watched:
            if path.is_dir():
                inside = (one for one in path.rglob("*") if one.is_file() and not _is_cache(one))
                yield from (one for one, _ in zip(inside, range(MAX_FILES), strict=False))
            else:
                yield path


def _is_cache(path: Path) -> bool:
    return "__pycache__" in path.parts or any(part.startswith(".") for part in path.parts[-2:])


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
