"""Puts a page where it was asked for: whole or not at all."""

import os
import sys
from pathlib import Path
from typing import Final

from upcycle.viewing.errors import CannotWrite
from upcycle.whole_files import written_whole

STDOUT: Final = "-"


def check_place(output: str) -> None:
    """Before any work. Raises CannotWrite."""
    if output == STDOUT:
        return
    if output.startswith("-"):
        raise CannotWrite(f"-o is followed by {output!r}", "name a file; `-o -` is standard output")
    path = Path(output)
    if not path.parent.is_dir():
        raise CannotWrite(f"there is no folder {path.parent}", "create it, or name another file with -o")
    if path.exists() and not path.is_file():
        raise CannotWrite(f"{path} is no file", "name a file with -o; `-o -` is standard output")
    if path.exists() and path.suffix not in (".html", ".htm"):
        raise CannotWrite(f"{path} exists and is no .html file", "name another with -o: it would be replaced")


def write_page(text: str, output: str) -> None:
    """A file that is there is replaced at once: who reads it sees the old page or the new one. Raises
    CannotWrite."""
    data = text.encode()
    if output == STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    try:
        with written_whole(path) as draft, draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error}", "name another file with -o") from error
