"""Reads a TOML file, and tells the line of each of its keys: tomllib tells it of syntax errors only."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_KEY: Final = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_HEADER: Final = re.compile(r"^\s*\[+\s*([^\[\]]+?)\s*\]+")
_POSITION: Final = re.compile(r"\(at line (\d+), column \d+\)")


class TomlInvalid(ValueError):
    """A file is not TOML, or cannot be read: its reader says so as an error of its own."""


@dataclass(frozen=True, slots=True)
class TomlFile:
    """What a file says. lines: of its keys and tables, by dotted path, 1 first."""

    path: Path
    document: Mapping[str, Any]
    lines: Mapping[str, int]

    def place(self, key: str) -> str:
        """`FILE:LINE` of a dotted key; for a key of an inline table, the table's line."""
        while key:
            if key in self.lines:
                return f"{self.path}:{self.lines[key]}"
            key = key.rpartition(".")[0]
        return f"{self.path}:1"


def read_toml(path: Path) -> TomlFile:
    """Raises FileNotFoundError, and TomlInvalid, which names the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        raise
    except tomllib.TOMLDecodeError as error:
        found = _POSITION.search(str(error))
        place = f"{path}:{found[1]}" if found else str(path)
        raise TomlInvalid(f"{place} is not TOML: {_POSITION.sub('', str(error)).strip()}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise TomlInvalid(f"{path} cannot be read: {str(error).partition(';')[0]}") from error
    return TomlFile(path, document, lines_of(text))


def lines_of(text: str) -> dict[str, int]:
    """The line of each key and table of a TOML document, 1 first."""
    found: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if key:
            found.setdefault(prefix + _plain(key[1]), number)
        elif header:
            prefix = f"{_plain(header[1])}."
            found.setdefault(prefix[:-1], number)
    return found


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
