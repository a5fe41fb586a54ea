"""Functions as operators write them for MODEL_GATEWAY_CAPTURE_REDACT, and such that fail."""

import os
import re
import sys
import time
from typing import Any

CANARY = "canary-5f1d"
"""In a prompt, and nowhere in a store."""
SAID = "exhausted"
"""In the answer of the engine's double, the same."""
NO_LIST = [1, 2, 3]


def scrub(value: Any) -> Any:
    """The canaries out of every string."""
    if isinstance(value, str):
        return re.sub(rf"{CANARY}\w*|{SAID}", "[gone]", value)
    if isinstance(value, list):
        return [scrub(one) for one in value]
    if isinstance(value, dict):
        return {scrub(name): scrub(one) for name, one in value.items()}
    return value


def unchanged(call: Any) -> Any:
    print("to no reader")
    return call


def drop(call: Any) -> None:
    """As one that forgets to return does."""
    scrub(call)


def raises(call: Any) -> Any:
    raise ValueError(f"of {call['messages']}")


def hangs(call: Any) -> Any:
    """No thread is ended in the middle of it."""
    return re.match("(a+)+$", "a" * 40 + "b") or call


def sleeps(call: Any) -> Any:
    time.sleep(30)
    return call


def exits(call: Any) -> Any:
    os._exit(3)


def leaves(call: Any) -> Any:
    sys.exit(str(call))


def fewer(call: Any) -> Any:
    return {**call, "answers": []}


def no_call(call: Any) -> Any:
    return "ok"


def no_text(call: Any) -> Any:
    return {**call, "answers": [{**call["answers"][0], "text": 7}]}


async def later(call: Any) -> Any:
    return call
