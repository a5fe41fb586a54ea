"""Judges as servers of models: real HTTP, verdicts with the nonce of their question."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.support.model_servers import KEY, Asked, Said


def nonce_in(system: str) -> str:
    """What a question wants to read in its verdict."""
    found = re.search(r'"nonce": "(\w+)"', system)
    assert found is not None, system
    return found.group(1)


def verdict(asked: Asked, *met: bool) -> str:
    """On each criterion, as a judge writes it."""
    rows = [{"id": number, "reason": f"reason {number}", "met": one} for number, one in enumerate(met, 1)]
    return json.dumps({"nonce": nonce_in(asked.body["messages"][0]["content"]), "criteria": rows})


def completion(text: str) -> Said:
    """A chat completion."""
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}}
    return Said(200, {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 10}})


def judging(*met: bool) -> Callable[[Asked], Said]:
    """A judge that says the same of each answer, to whom has the key."""

    def answer(asked: Asked) -> Said:
        if asked.headers.get("authorization") != f"Bearer {KEY}":
            return Said(401, {"error": {"message": f"wrong key {asked.headers.get('authorization')}"}})
        return completion(verdict(asked, *met))

    return answer
