"""Runs a command line: pipelines in their order, each command a function of this package."""

from dataclasses import dataclass
from typing import Final

from ..errors import ActionRefused, CommandFailed
from ..machine.paths import matching, read, resolve, write
from ..machine.state import Computer
from .account_commands import ACCOUNT_COMMANDS
from .command import Command
from .file_commands import FILE_COMMANDS
from .parsing import MAX_COMMAND_CHARS, Call, Pipeline, Token, pipelines_of
from .service_commands import SERVICE_COMMANDS
from .text_commands import TEXT_COMMANDS

MAX_OUTPUT_CHARS: Final = 12_000
MAX_PIPED_CHARS: Final = 400_000
COMMANDS: Final[dict[str, Command]] = {
    **TEXT_COMMANDS,
    **FILE_COMMANDS,
    **SERVICE_COMMANDS,
    **ACCOUNT_COMMANDS,
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command line printed, and the status of its last command."""

    text: str
    status: int


def run(machine: Computer, command: str) -> Ran:
    """Run a command line. Raises ActionRefused for one that is too long."""
    if len(command) > MAX_COMMAND_CHARS:
        raise ActionRefused(
            f"the command has {len(command):,} characters", f"at most {MAX_COMMAND_CHARS:,} are taken"
        )
    try:
        waiting = pipelines_of(command)
    except CommandFailed as error:
        return Ran(f"shell: {error}", 2)
    printed: list[str] = []
    status = 0
    for pipeline in waiting:
        if (pipeline.joined == "&&" and status) or (pipeline.joined == "||" and not status):
            continue
        status = _run_pipeline(machine, pipeline, printed)
    return Ran(_cut("\n".join(one.rstrip("\n") for one in printed if one.strip("\n"))), status)


def _run_pipeline(machine: Computer, pipeline: Pipeline, printed: list[str]) -> int:
    piped, error = "", ""
    for call in pipeline.calls:
        piped, error = _run_call(machine, call, piped)
        if error:
            printed.append(error)
    printed.append(piped)
    last = pipeline.calls[-1]
    return int(bool(error) or not (last.writes or _found(last, piped)))


def _found(call: Call, output: str) -> bool:
    """grep that finds nothing is no success, as it is elsewhere."""
    return call.words[0].text != "grep" or bool(output)


def _run_call(machine: Computer, call: Call, piped: str) -> tuple[str, str]:
    """(what goes on to the next command, what went wrong)."""
    name = call.words[0].text
    try:
        if name == "help":
            return f"commands: {', '.join(sorted(COMMANDS))}\n", ""
        if name not in COMMANDS:
            return "", f"{name[:60]}: command not found; help names those that there are"
        arguments = [one for word in call.words[1:] for one in _expanded(machine, word)]
        given = read(machine, call.reads) if call.reads else piped
        output = COMMANDS[name](machine, arguments, given)[:MAX_PIPED_CHARS]
        if not call.writes:
            return output, ""
        if call.writes != "/dev/null":
            _redirect(machine, call, output)
        return "", ""
    except CommandFailed as error:
        return "", f"{name}: {error}"


def _redirect(machine: Computer, call: Call, output: str) -> None:
    path = resolve(machine, call.writes)
    before = read(machine, path) if call.appends and path in machine.files else ""
    write(machine, call.writes, before + output)


def _expanded(machine: Computer, word: Token) -> list[str]:
    """The paths that a word with * or ? names; else the word."""
    if word.is_plain and any(one in word.text for one in "*?"):
        return matching(machine, word.text) or [word.text]
    return [word.text]


def _cut(text: str) -> str:
    if len(text) <= MAX_OUTPUT_CHARS:
        return text
    more = len(text) - MAX_OUTPUT_CHARS
    return f"{text[:MAX_OUTPUT_CHARS]}\n… {more:,} characters more: head, tail and grep show less"
