"""What an image would hold whose Dockerfile runs nothing: files, a folder to work in, variables."""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from upcycle.importers.errors import ImportRefused

WORKDIR: Final = "/app"
PLAIN_IMAGES: Final = frozenset({"alpine", "busybox", "debian", "python", "ubuntu"})
"""Bases that a machine with bash and Python can stand for."""
ENGINE: Final = "it needs a container"
ENGINE_WAY_OUT: Final = "pass engine='docker' or 'podman' where one is"
_WITHOUT_EFFECT: Final = frozenset(
    {"ARG", "CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "SHELL", "STOPSIGNAL"}
)
_CONTINUED: Final = re.compile(r"\\\n(?:[ \t]*#.*\n)*")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """content, and whether it may be executed."""

    content: bytes
    is_executable: bool = False


Files = Mapping[str, StoredFile]
"""By path: absolute in an image, relative in a folder."""


@dataclass(slots=True)
class PlainImage:
    """workdir: where the agent works; files: by absolute path."""

    workdir: str = WORKDIR
    files: dict[str, StoredFile] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


def plain_image(text: str, context: Files, where: str, *, ignore_run: bool) -> PlainImage:
    """context: the files beside the Dockerfile. ignore_run: this machine has what RUN lines would make.
    Raises ImportRefused, which names the line that needs an image."""
    image = PlainImage()
    for number, word, rest in _instructions(text):
        place = f"{where}:{number}"
        if word == "FROM":
            check_base(rest.split()[0], place)
        elif word == "WORKDIR":
            image.workdir = posixpath.normpath(posixpath.join(image.workdir, rest.strip("\"'")))
        elif word == "ENV":
            image.variables |= _variables(rest)
        elif word in ("COPY", "ADD"):
            image.files |= _copied(_words(rest), context, image.workdir, place)
        elif not (word in _WITHOUT_EFFECT or _is_root(word, rest) or (word == "RUN" and ignore_run)):
            or_else = ", or ignore_run=True where this machine has what it makes" if word == "RUN" else ""
            raise ImportRefused(f"{place}: {word} {rest[:60]!r}: {ENGINE}", f"{ENGINE_WAY_OUT}{or_else}")
    return image


def check_base(image: str, place: str) -> None:
    """Raises ImportRefused for one with contents that are not known."""
    name = image.removeprefix("docker.io/").removeprefix("library/").partition("@")[0].partition(":")[0]
    if name not in PLAIN_IMAGES:
        known = ", ".join(sorted(PLAIN_IMAGES))
        raise ImportRefused(
            f"{place}: image {image!r}: {ENGINE}", f"{ENGINE_WAY_OUT}; this machine stands for {known} alone"
        )


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Number of the line, word, and the rest."""
    joined = _CONTINUED.sub(lambda found: " " + "\0" * found[0].count("\n"), text)
    number = 1
    for line in joined.split("\n"):
        said = line.replace("\0", "").strip()
        if said and not said.startswith("#"):
            word, _, rest = said.partition(" ")
            yield number, word.upper(), rest.strip()
        number += 1 + line.count("\0")


def _is_root(word: str, rest: str) -> bool:
    return word == "USER" and rest.split(":")[0] in ("root", "0")


def _words(rest: str) -> list[str]:
    words = list(map(str, json.loads(rest))) if rest.startswith("[") else shlex.split(rest)
    return [word for word in words if not word.startswith("--chmod") and not word.startswith("--chown")]


def _variables(rest: str) -> dict[str, str]:
    if "=" not in rest.split()[0]:  # the older form: ENV NAME value
        name, _, value = rest.partition(" ")
        return {name: value.strip()}
    return dict(word.partition("=")[::2] for word in shlex.split(rest))


def _copied(words: list[str], context: Files, workdir: str, place: str) -> dict[str, StoredFile]:
    *sources, target = words
    if any(word.startswith("--") or "://" in word for word in words) or not sources:
        raise ImportRefused(f"{place}: COPY {' '.join(words)[:60]!r}: {ENGINE}", ENGINE_WAY_OUT)
    whole = posixpath.normpath(posixpath.join(workdir, target))
    copied: dict[str, StoredFile] = {}
    for source in (posixpath.normpath(one).lstrip("/") for one in sources):
        if source in context:
            is_folder = target.endswith("/") or target in (".", "./") or len(sources) > 1
            name = posixpath.join(whole, posixpath.basename(source)) if is_folder else whole
            copied[name] = context[source]
            continue
        below = "" if source in (".", "") else f"{source}/"
        found = {path: file for path, file in context.items() if path.startswith(below)}
        if not found:
            raise ImportRefused(f"{place}: there is no {source!r} beside it", "put it into environment/")
        copied |= {posixpath.join(whole, path.removeprefix(below)): file for path, file in found.items()}
    return copied
