"""Checks that a printed command is one that can be typed: program, sub-command, flags, files, variables."""

import argparse
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import yaml
from tests.docs.snippets import SnippetFailed

from embedded_engine import app as embedded_engine
from model_gateway import cli as model_gateway
from upcycle.cli.main import build_app

_ASSIGNMENT: Final = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_OPERATORS: Final = ("&&", "||", "|", ";", "&", ">")
_OF_A_READER: Final = (
    "UPCYCLE_API_KEY",
    "UPCYCLE_OPERATOR_KEY",
    "UPCYCLE_USER_KEY",
    "ANTHROPIC_",
    "OPENAI_",
    "PIP_",
    "OTEL_",
    "INCIDENT_",
    "UPCYCLE_PEERS_",
)
"""Variables that are no setting of a service."""
_OF_THE_SHELL: Final = ("cd", "source", "git", "hf", "mkdir", "sed")


def check_commands(root: Path, text: str) -> None:
    """Every command of a block. Raises SnippetFailed for one that could not be typed."""
    made: set[str] = set()
    for line in re.sub(r"\$\([^)]*\)", "X", text.replace("\\\n", " ")).splitlines():
        for words in _commands(line):
            _check(root, words, made)


def _commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    command: list[str] = []
    words = [*lexer, ";"]
    for before, word in zip([";", *words], words, strict=False):
        if before == ">":  # the file that is written
            continue
        if word not in _OPERATORS:
            command.append(word)
        elif command:
            yield command
            command = []


def _check(root: Path, words: list[str], made: set[str]) -> None:
    if words[0] == "export":
        words = words[1:]
    while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
        _check_variable(root, assigned[1])
        words = words[1:]
    if not words:
        return
    program, *arguments = words
    if program in _OF_THE_SHELL:
        return
    if program.startswith("deploy/images/") and not arguments:
        return _check_file(root, program)
    if program == "cp":
        _check_file(root, arguments[0], made)
        made.add(arguments[1])
    elif program not in _PROGRAMS:
        raise SnippetFailed(f"nothing checks the command {shlex.join(words)!r}")
    else:
        _PROGRAMS[program](root, arguments)


def _check_file(root: Path, name: str, made: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    if name not in made and not (root / name).exists():
        raise SnippetFailed(f"there is no {name}")


def _check_variable(root: Path, name: str) -> None:
    reference = (root / "docs/reference/settings.md").read_text()
    if f"| `{name}` |" not in reference and not name.startswith(_OF_A_READER):
        raise SnippetFailed(f"no service has the setting {name}")


def _upcycle(root: Path, arguments: list[str]) -> None:
    try:
        build_app().parse_args(arguments, exit_on_error=False, print_error=False)
    except Exception as error:
        raise SnippetFailed(f"upcycle {shlex.join(arguments)}: {error}") from error
    for name in arguments:
        if name.startswith(("examples/", "./examples/")):
            _check_file(root, name)


def _make(root: Path, arguments: list[str]) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    for name in arguments:
        if "=" not in name and not name.startswith("-") and name not in targets:
            raise SnippetFailed(f"make has no target {name!r}")


@cache
def _distributions(root: Path) -> dict[str, dict[str, Any]]:
    tables = [tomllib.loads((root / name).read_text()) for name in ("pyproject.toml", "libs/pyproject.toml")]
    platform, sdk = (table["project"] for table in tables)
    return {".": platform, "upcycle-platform": platform, "./libs": sdk, "upcycle": sdk}


def _pip(root: Path, arguments: list[str]) -> None:
    if arguments[0] != "install":
        raise SnippetFailed(f"pip {arguments[0]} is not checked")
    for wanted in arguments[1:]:
        name, _, extras = wanted.rstrip("]").partition("[")
        project = _distributions(root).get(name)
        if project is None and ("/" in name or extras):
            raise SnippetFailed(f"{wanted!r} is no distribution of this repository")
        for extra in extras.split(",") if extras else ():
            if extra not in (project or {})["optional-dependencies"]:
                raise SnippetFailed(f"{name} has no extra {extra!r}")


def _python(root: Path, arguments: list[str]) -> None:
    if arguments[0] != "-m":
        return _check_file(root, arguments[0])
    if importlib.util.find_spec(arguments[1]) is None:
        raise SnippetFailed(f"there is no module {arguments[1]}")
    return None


def _pytest(root: Path, arguments: list[str]) -> None:
    for name in arguments:
        if name.startswith("tests/"):
            _check_file(root, name.partition("::")[0])


def _docker(root: Path, arguments: list[str]) -> None:
    services = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    if arguments[1:2] == ["--env-file"]:  # copied by an earlier line of the page
        arguments = [arguments[0], *arguments[3:]]
    match arguments:
        case ["compose", "exec", service, *words] if service in services:
            _check(root, words, set())
        case ["compose", "run", "--rm", service, *words] if service in services:
            _check(root, words, set())
        case ["compose", "up" | "stop" | "ps" | "down" | "logs" | "build", *_]:
            return
        case _:
            raise SnippetFailed(f"docker {shlex.join(arguments)}: not a command for docker-compose.yml")


def _parsed(parse: Callable[[list[str]], object], root: Path, arguments: list[str]) -> None:
    try:
        parse(arguments)
    except SystemExit as error:
        raise SnippetFailed(f"{shlex.join(arguments)} is refused") from error


def _service(name: str, root: Path, arguments: list[str]) -> None:
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    if name not in scripts or any(one not in ("--help", "--replicas", "3") for one in arguments):
        raise SnippetFailed(f"{name} {shlex.join(arguments)} is no command of a service")


_GATEWAY: Final[argparse.ArgumentParser] = model_gateway._parser()
_PROGRAMS: Final[dict[str, Callable[[Path, list[str]], object]]] = {
    "upcycle": _upcycle,
    "make": _make,
    "pip": _pip,
    "python": _python,
    "pytest": _pytest,
    "docker": _docker,
    "upcycle-model-gateway": partial(_parsed, _GATEWAY.parse_args),
    "upcycle-embedded-engine": partial(_parsed, embedded_engine._parse),
    **{
        name: partial(_service, name)
        for name in ("upcycle-provision", "upcycle-policy-engine", "upcycle-checkpoint-registry")
    },
}
