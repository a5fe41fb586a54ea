"""A process that compiles grammars before the engine does: `python -m embedded_engine.grammar_trial`.

llguidance has no limit for what some grammars need: an integer that is a multiple of a million takes minutes
and gigabytes, and no thread can be ended. A process can, by its engine and by its own limits, which also hold
where the engine is gone. It reads JSON lines, a tokenizer or a grammar to try with it, and answers each.
"""

import json
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embedded_engine.matchers import matcher_of, tokenizer_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MEMORY_BYTES: Final = 1 << 30
"""That a grammar may need, beside the tokenizer."""
_STATM: Final = Path("/proc/self/statm")


def cpu_seconds(within_s: float) -> int:
    """Of processor time that a grammar gets: less than the wait for it, so that on a free processor what ends
    it is its own fault, and is remembered."""
    return max(1, round(0.4 * within_s))


def main() -> None:
    """Answer each line until the engine closes the pipe, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for the engine
    tokenizer: LLTokenizer | None = None
    while line := sys.stdin.buffer.readline():
        said = json.loads(line)
        if "tokenizer" in said:
            tokenizer = _read(said)
        elif tokenizer is not None:
            _try(said, tokenizer)
        sys.stdout.write("done\n")
        sys.stdout.flush()


def _read(said: dict[str, Any]) -> "LLTokenizer | None":
    try:
        tokenizer = tokenizer_of(said["tokenizer"], said["vocab"], said["stop_token_ids"])
    except Exception:  # llguidance raises what its parts raise; the engine says it to the client
        return None
    if _STATM.exists():
        pages = int(_STATM.read_text().split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES)
    return tokenizer


def _try(said: dict[str, Any], tokenizer: "LLTokenizer") -> None:
    _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + cpu_seconds(said["seconds"]))
    matcher = matcher_of(tokenizer, said["grammar"])
    if not matcher.is_error():
        matcher.compute_bitmask()  # where a grammar that can never be followed shows


def _limit(kind: int, most: int) -> None:
    """The soft limit, which may be raised again for the next one."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
