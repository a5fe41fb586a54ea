"""A command line becomes pipelines of words. There are no variables, substitutions or loops."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ..errors import CommandFailed

MAX_COMMAND_CHARS: Final = 20_000
_OPERATOR: Final = re.compile(r"2>&1|2>/dev/null|2> /dev/null|&&|\|\||>>|[|;<>&\n]")
_ESCAPES: Final = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Token:
    """is_plain: not quoted, so that ~ and * mean something."""

    text: str
    is_operator: bool = False
    is_plain: bool = True


@dataclass(slots=True)
class Call:
    """One command with its redirections."""

    words: list[Token] = field(default_factory=list)
    reads: str = ""
    writes: str = ""
    appends: bool = False


@dataclass(slots=True)
class Pipeline:
    """joined: ";", "&&" or "||": when it runs, after the one before it."""

    joined: str
    calls: list[Call]


def pipelines_of(command: str) -> list[Pipeline]:
    """What a command line says. Raises CommandFailed."""
    found = [Pipeline(";", [Call()])]
    tokens = list(_tokens(command))
    at = 0
    while at < len(tokens):
        token, at = tokens[at], at + 1
        call = found[-1].calls[-1]
        if not token.is_operator:
            call.words.append(token)
        elif token.text in (">", ">>", "<"):
            if at == len(tokens) or tokens[at].is_operator:
                raise CommandFailed(f"syntax error: a file name is missing after {token.text}")
            _redirect(call, token.text, tokens[at].text)
            at += 1
        elif token.text == "|":
            found[-1].calls.append(Call())
        else:
            found.append(Pipeline(";" if token.text == "\n" else token.text, [Call()]))
    return [one for one in found if _is_something(one)]


def _redirect(call: Call, operator: str, name: str) -> None:
    if operator == "<":
        call.reads = name
    else:
        call.writes, call.appends = name, operator == ">>"


def _is_something(pipeline: Pipeline) -> bool:
    full = [bool(call.words) for call in pipeline.calls]
    if any(full) and not all(full):
        raise CommandFailed("syntax error: a command is missing beside |")
    return all(full)


def _tokens(command: str) -> Iterator[Token]:
    at = 0
    while at < len(command):
        if operator := _OPERATOR.match(command, at):
            at = operator.end()
            if operator[0] == "&":
                raise CommandFailed("syntax error: nothing runs in the background here; leave & out")
            if not operator[0].startswith("2>"):
                yield Token(operator[0], is_operator=True)
        elif command[at] in " \t\r":
            at += 1
        elif command[at] == "#":
            at = (command + "\n").index("\n", at)
        else:
            token, at = _one_word(command, at)
            yield token


def _one_word(command: str, at: int) -> tuple[Token, int]:
    """The word that begins at a place, and where it ends."""
    text, is_plain = "", True
    while at < len(command) and command[at] not in " \t\r|;<>&\n":
        char = command[at]
        if char == "'":
            end = command.find("'", at + 1)
            if end < 0:
                raise CommandFailed("syntax error: a ' is not closed")
            text, at, is_plain = text + command[at + 1 : end], end + 1, False
        elif char == '"':
            inner, at = _double_quoted(command, at + 1)
            text, is_plain = text + inner, False
        elif char == "\\" and at + 1 < len(command):
            text, at, is_plain = text + command[at + 1], at + 2, False
        else:
            _refuse_substitution(command, at)
            text, at = text + char, at + 1
    return Token(text, is_plain=is_plain), at


def _double_quoted(command: str, at: int) -> tuple[str, int]:
    text = ""
    while at < len(command) and command[at] != '"':
        if command[at] == "\\" and command[at + 1 : at + 2] in ('"', "\\", "$", "`"):
            at += 1
        else:
            _refuse_substitution(command, at)
        text, at = text + command[at], at + 1
    if at >= len(command):
        raise CommandFailed('syntax error: a " is not closed')
    return text, at + 1


def _refuse_substitution(command: str, at: int) -> None:
    if command[at] == "`" or re.match(r"\$[({A-Za-z_]", command[at : at + 2]):
        raise CommandFailed(f"{command[at : at + 20]!r}: this shell has no variables and no substitutions")


def unescaped(text: str) -> str:
    r"""`\n`, `\t` and `\\` as printf reads them."""
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text)


def options(args: list[str], flags: str, valued: str = "") -> tuple[dict[str, str], list[str]]:
    """(options that are there, with their values; the other arguments). Raises CommandFailed."""
    found: dict[str, str] = {}
    rest: list[str] = []
    waiting = list(args)
    while waiting:
        arg = waiting.pop(0)
        if arg == "--":
            return found, [*rest, *waiting]
        if not arg.startswith("-") or arg == "-" or arg.startswith("--"):
            rest.append(arg)
            continue
        for place, letter in enumerate(arg[1:], 1):
            if letter in valued:
                value = arg[place + 1 :] or (waiting.pop(0) if waiting else "")
                if not value:
                    raise CommandFailed(f"option -{letter} needs a value")
                found[letter] = value
                break
            if letter not in flags:
                raise CommandFailed(f"unknown option -{letter}; known are {', '.join(flags + valued)}")
            found[letter] = "yes"
    return found, rest
