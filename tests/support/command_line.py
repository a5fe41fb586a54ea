"""`upcycle …` in this process, as a user meets it, against services that a test started."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import cyclopts
import pytest

from upcycle.cli.exits import Exit
from upcycle.cli.main import build_app
from upcycle.cli.output import fail
from upcycle.platform import PEERS


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str


class CommandLine:
    """Commands find the services at these addresses; at all others nothing listens."""

    def __init__(self, capsys: pytest.CaptureFixture[str], addresses: Mapping[str, str]) -> None:
        self._capsys = capsys
        self._addresses = {**dict.fromkeys(PEERS, "127.0.0.1:1"), **addresses}

    async def __call__(self, *arguments: str) -> Said:
        """As `upcycle.cli.main.run` does, in the loop of the test."""
        self._capsys.readouterr()
        with self._found():
            try:
                command, bound, _ = build_app().parse_args(list(arguments), exit_on_error=False)
                result = command(*bound.args, **bound.kwargs)
                status = await result if inspect.isawaitable(result) else result
            except cyclopts.CycloptsError:
                status = Exit.USAGE
            except Exception as error:
                status = fail(error)
        printed = self._capsys.readouterr()
        return Said(int(status), printed.out, printed.err)

    @contextmanager
    def _found(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for peer, address in self._addresses.items():
                patch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)
            yield
