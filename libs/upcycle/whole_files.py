"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A draft beside `path`, with its ending, for the block to write. Where the block ends well, the draft
    replaces `path` at once: who reads it sees the old file or the new one. Raises OSError."""
    draft = path.with_name(f".{path.stem[:80]}.{os.getpid()}{path.suffix}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
