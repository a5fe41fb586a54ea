"""Humans read standard error, programs read standard output.

A command prints its result once: text for people, or JSON lines with `schema_version` when asked.
"""

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.plain_output import unfiltered
from upcycle.cli.terminal_text import terminal_text

if TYPE_CHECKING:
    from rich.console import Console

JsonFlag = Annotated[bool, Parameter(name="--json")]
"""The option of every command that can print JSON lines."""
SCHEMA_VERSION: Final = 1
_OF_THE_WIRE: Final = re.compile(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|UNKNOWN)( [A-Z_]+)?: ")
"""Statuses of gRPC, with our reason beside them."""
_TOO_LATE: Final = re.compile(r"Stream removed \(Deadline Exceeded\)|Deadline Exceeded")
WIDE_COLUMNS: Final = 160


def human() -> "Console":
    """Console on standard error; honours NO_COLOR and CI. Control characters of a text stay out of it."""
    from upcycle.cli.consoles import TextConsole

    # a line of a log is not broken at the 80 columns that a file has
    return TextConsole(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def result_console() -> "Console":
    """Console on standard output, for tables that are the result. As human() otherwise."""
    from upcycle.cli.consoles import PipedConsole, TextConsole

    file = unfiltered(sys.stdout)  # they filter texts, and colour them
    return TextConsole(file=file, highlight=False) if file.isatty() else PipedConsole(WIDE_COLUMNS, file)


def print_json(kind: str, value: Any) -> None:
    """One JSON line on standard output: `{"schema_version", "kind", …}`."""
    line = {"schema_version": SCHEMA_VERSION, "kind": kind, **fields_of(value)}
    sys.stdout.write(json.dumps(line, sort_keys=False) + "\n")
    sys.stdout.flush()


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a JSON line: those of a dict as they are, those of a message by their names."""
    if isinstance(value, dict):
        return value
    from google.protobuf.json_format import MessageToDict

    found = MessageToDict(
        value,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        use_integers_for_enums=False,
    )
    return _with_flat_identity(found)


def _with_flat_identity(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a nested episode identity stand beside the others: `trajectory_id`, not `episode.…`."""
    identity = fields.get("episode")
    if isinstance(identity, dict):
        fields = {**identity, **{name: value for name, value in fields.items() if name != "episode"}}
    return {
        name: _with_flat_identity(value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }


def fail(error: Exception) -> int:
    """Say in one line what went wrong; the exit status that fits it. Unknown errors show their traceback."""
    status = _status_of(error)
    _report(_kind_of(error), words_of(error))
    if status is None:
        raise error
    sys.stderr.write(f"upcycle: {terminal_text(words_of(error))}\n")
    return status


def refuse(said: str) -> int:
    """A command line that cannot be read: the same line, which no pipe wraps."""
    text = " ".join(said.split())
    _report("usage", text)
    sys.stderr.write(f"upcycle: {terminal_text(text)}\n")
    return Exit.USAGE


def _report(kind: str, message: str) -> None:
    """For programs, where they asked for it."""
    if "--json" in sys.argv or os.environ.get("UPCYCLE_OUTPUT") == "json":
        print_json("error", {"error": {"kind": kind, "message": message}})


def words_of(error: BaseException) -> str:
    """The text for people: a service's own sentence, without the words of the wire."""
    import grpc

    from upcycle.errors import Unavailable
    from upcycle.rpc import RemoteError

    said = error.message if isinstance(error, RemoteError) else str(error)
    cause = error.__cause__
    if isinstance(error, Unavailable) and isinstance(cause, grpc.aio.AioRpcError):
        said = _TOO_LATE.sub("no answer in time", _OF_THE_WIRE.sub("", said))
    return said or type(error).__name__


def _kind_of(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "kind", None) or type(error).__name__)


def _status_of(error: Exception) -> int | None:
    from grpc import StatusCode

    from upcycle.errors import Failed, Unavailable, UpcycleError
    from upcycle.platform import PlatformNotFound
    from upcycle.rpc import RemoteError

    if isinstance(error, PlatformNotFound | Unavailable):
        return Exit.UNREACHABLE
    if isinstance(error, Failed | TimeoutError):
        return Exit.FAILED
    if isinstance(error, UpcycleError | FileNotFoundError):
        return Exit.USAGE
    if isinstance(error, RemoteError):
        named_wrong = error.code in (StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND)
        return Exit.USAGE if named_wrong else Exit.FAILED
    return None
