"""Write the digest of each image of others behind its name, in docker-compose.yml and deploy/Dockerfile.

What was tested is then what runs. The digests are those of the registries that the names lead to, asked by
this machine's Docker engine, which keeps the images. make pin; also to take over what was published under the
same names since. An image that cannot be pulled, such as a stand-in, stays as it is named: exit status 1.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = (ROOT / "docker-compose.yml", ROOT / "deploy" / "Dockerfile")
_NAMED: Final = re.compile(
    r"(?P<before>\$\{UPCYCLE_(?!TRAIN_)[A-Z]+_IMAGE:-|^ARG PYTHON_IMAGE=)"
    r"(?P<tag>[^@}\s]+)(?:@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)


class CannotPinError(Exception):
    """An image has no digest that others would find."""


def tags(text: str) -> list[str]:
    """The images of others that a file names, each without its digest."""
    return [found["tag"] for found in _NAMED.finditer(text)]


def pinned(text: str, digests: Mapping[str, str]) -> str:
    """The file with each tag followed by its digest, where there is one."""

    def named(found: re.Match[str]) -> str:
        tag = found["tag"]
        return f"{found['before']}{tag}@{digests[tag]}" if tag in digests else found[0]

    return _NAMED.sub(named, text)


def digest_of(tag: str) -> str:
    """What its registry calls the image, for all architectures. Raises CannotPinError."""
    _docker("pull", "--quiet", tag)
    names: list[str] = json.loads(_docker("image", "inspect", "--format", "{{json .RepoDigests}}", tag))
    repository = tag.rpartition(":")[0]
    digests = {name.partition("@")[2] for name in names if name.partition("@")[0] == repository}
    if len(digests) != 1:
        raise CannotPinError(
            f"the engine knows {tag} by {len(digests)} digests of {repository}, not by one: {names}"
        )
    return digests.pop()


def _docker(*command: str) -> str:
    done = subprocess.run(["docker", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotPinError(f"docker {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    """Pin those that can be pulled."""
    texts = {file: file.read_text() for file in FILES}
    digests, failed = dict[str, str](), False
    for tag in dict.fromkeys(tag for text in texts.values() for tag in tags(text)):
        try:
            digests[tag] = digest_of(tag)
            print(f"{tag}@{digests[tag]}")
        except CannotPinError as error:
            print(f"{tag} was not pinned: {error}", file=sys.stderr)
            failed = True
    for file, text in texts.items():
        file.write_text(pinned(text, digests))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
