"""The locks of requirements/ as data."""

import re
from pathlib import Path
from typing import Final

from packaging.markers import Marker, default_environment
from packaging.utils import canonicalize_name

FOLDER: Final = Path(__file__).resolve().parents[2] / "requirements"
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*([^\\]*?))?(?=\s+--hash|\s*\\|\s*$)")
_OF_IMAGES: Final = {
    "python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux",
    "platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}  # fmt: skip
Lock = dict[tuple[str, str], frozenset[str]]


def locked(*files: str) -> Lock:
    """(package, version) -> SHA-256 of each file that it may be installed from, on any system."""
    return {(name, version): hashes for name, version, _, hashes in _lines(files)}


def locked_for_images(*files: str) -> dict[str, str]:
    """Package -> the version that is installed on Linux with Python 3.11."""
    here = {key: str(value) for key, value in default_environment().items()}
    system: dict[str, str] = {**here, **_OF_IMAGES}
    return {
        canonicalize_name(name): version
        for name, version, marker, _ in _lines(files)
        if not marker or Marker(marker).evaluate(system)
    }


def _lines(files: tuple[str, ...]) -> list[tuple[str, str, str, frozenset[str]]]:
    found = []
    for file in files:
        for line in (FOLDER / file).read_text().replace("\\\n", " ").splitlines():
            if pinned := _PINNED.match(line):
                hashes = frozenset(re.findall(r"--hash=sha256:(\w+)", line))
                found.append((pinned[1], pinned[2], pinned[3] or "", hashes))
    assert found
    return found
