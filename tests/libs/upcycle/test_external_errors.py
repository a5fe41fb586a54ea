"""Which exceptions say that the outside world failed, as the author of an environment declares it."""

from typing import Any

import pytest

from upcycle import Environment, InfrastructureError
from upcycle.errors import DefinitionError, ToolFailed


class DatabaseAway(Exception):
    """Declared by an environment."""


def raising(error: Exception) -> ToolFailed:
    try:
        raise ToolFailed("the tool") from error
    except ToolFailed as wrapped:
        return wrapped


@pytest.mark.parametrize(
    ("error", "by_default", "declared"),
    [
        (ConnectionRefusedError(), True, False),
        (InfrastructureError("x"), True, True),
        (DatabaseAway(), False, True),
        (TimeoutError(), False, False),
        (FileNotFoundError(), False, False),
        (OSError(28, "No space left on device"), False, False),
        (KeyError("x"), False, False),
    ],
)
def test_only_what_is_declared_is_the_outside(error: Exception, by_default: bool, declared: bool) -> None:
    plain, own = Environment("a"), Environment("b", external_errors=(DatabaseAway,))
    for env, expected in ((plain, by_default), (own, declared)):
        assert env.is_external(error) is expected
        assert env.is_external(raising(error)) is expected
        assert env.is_external(ExceptionGroup("all", [error, error])) is expected
        assert not env.is_external(ExceptionGroup("some", [error, ValueError()]))


async def test_a_tool_that_meets_an_outage_raises_and_is_no_result() -> None:
    env = Environment("a")

    @env.tool()
    def query() -> str:
        raise ConnectionResetError("port 5432")

    with pytest.raises(ToolFailed, match="port 5432"):
        await env.call_tool("query", {})


@pytest.mark.parametrize("types", [ConnectionError, [ConnectionError], ("ConnectionError",), (int,)])
def test_an_external_errors_that_is_no_tuple_of_exceptions_is_refused(types: Any) -> None:
    with pytest.raises(DefinitionError, match="external_errors is"):
        Environment("a", external_errors=types)
