"""A policy engine whose model doubles a number with a tool, then says it; for 4 + 4 it says 9."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Final

from benchmarks.instant_engine import Instant, serve

from chat_format import ChatFormat

_ASKED: Final = re.compile(r"(\d+) \+ \1\?")
_RESULT: Final = re.compile(r"<tool_response>\n(\d+)\n</tool_response>")


class Doubles(Instant):
    """Two calls, of which the second is wrong, then the answer."""

    def answer(self, prompt: str) -> str:
        """What it writes next."""
        asked, results = _ASKED.search(prompt), _RESULT.findall(prompt)
        number = int(asked[1]) if asked else 0
        if not results:
            return "".join(_call(n) for n in (number, 1000))
        return "9" if number == 4 else results[0]


def _call(number: int) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'double', 'arguments': {'n': number}})}\n</tool_call>"


if __name__ == "__main__":
    asyncio.run(serve(Doubles(ChatFormat.load(Path(sys.argv[1])))))
