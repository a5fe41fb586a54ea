"""Whether a model thinks before it answers: two words, or a budget of tokens."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from upcycle.run_config.limits import OneOf, refuse, shown

ON, OFF = "on", "off"
MAX_BUDGET: Final = 1 << 20
_BUDGET: Final = f"1 to {MAX_BUDGET}"


class _Thinking(OneOf):
    """Two words, or a number. The number is kept in its shortest form."""

    __slots__ = ()

    def _checked(self, value: str) -> str:
        if value in ("", ON, OFF):
            return value
        is_number = value.isascii() and value.isdigit() and len(value) < 20
        if is_number and 1 <= int(value) <= MAX_BUDGET:
            return str(int(value))
        raise refuse(f"must be {ON}, {OFF} or a budget of {_BUDGET} tokens, got {shown(value)}")


def _digits(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Thinking = Annotated[str, BeforeValidator(_digits), _Thinking((ON, OFF, _BUDGET))]
