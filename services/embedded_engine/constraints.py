"""Constrained decoding with llguidance: grammar texts become masks over the vocabulary.

llguidance is imported when the first constrained request comes, so that an engine without any starts as fast
as before. Grammars are compiled outside the decode thread, and in a process that can be ended first: what
takes too long there is refused, and never reaches this process. Each later mask is bounded by llguidance's
own limits, and all masks of one request together by `_SLOW_TOTAL_S`.
"""

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from embedded_engine.adjusting import Adjustment
from embedded_engine.errors import BadRequest
from embedded_engine.grammar_trial import MEMORY_BYTES, cpu_seconds
from embedded_engine.grammars import CallMarks
from embedded_engine.matchers import matcher_of, tokenizer_of
from embedded_engine.trials import GrammarTrials, NoTrialFree, TokenizerSource, TrialEnded, TrialTooLong

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

T = TypeVar("T")
COMPILE_S: Final = 5.0
_THREADS: Final = 2
_KEPT: Final = 64
_SAID: Final = 300
"""Characters of llguidance's message that are passed on: it may hold the whole grammar."""
_REFUSED_S: Final = 60.0
"""For which a grammar that was not ready is refused untried: the machine may have been busy."""
_SLOW_S: Final = 0.02
"""Processor time of a mask from which on it counts: every other sequence waits for it."""
_SLOW_TOTAL_S: Final = 1.0
"""That the slow masks of one request may take together."""


_BROKEN: Final = frozenset({"InternalError", "LexerTooComplex", "ParserTooComplex"})


@dataclass(slots=True)
class _Compiled:
    """A grammar that can be used, unless its masks turn out to hold up all others."""

    matcher: "LLMatcher"
    is_slow: bool = False


class MaskTime:
    """What the masks of one request took, all its sequences together. Used by the decode thread."""

    def __init__(self, compiled: _Compiled) -> None:
        self._compiled = compiled
        self._slow_s = 0.0

    def spent(self, seconds: float) -> None:
        """Of processor time, by one mask."""
        if seconds >= _SLOW_S:
            self._slow_s += seconds
            self._compiled.is_slow = self._compiled.is_slow or self._slow_s > _SLOW_TOTAL_S

    def check(self, param: str) -> None:
        """Raises BadRequest where it was too much."""
        if self._compiled.is_slow:
            raise _too_slow(param)


def _too_slow(param: str) -> BadRequest:
    return BadRequest(
        f"{param}: what its grammar allows next takes too long to find, more than {_SLOW_TOTAL_S:g} s for "
        f"tokens that took {_SLOW_S:g} s and more; give it fewer alternatives",
        param=param,
    )


class Constraint(Adjustment):
    """The grammar of one sequence, and how far it got."""

    def __init__(self, matcher: "LLMatcher", param: str, mask_time: MaskTime) -> None:
        self._matcher = matcher
        self._param = param
        self._mask_time = mask_time

    def fresh(self) -> "Constraint":
        """For another sequence, from where this one is."""
        return Constraint(self._matcher.deep_copy(), self._param, self._mask_time)

    def allowed(self, vocab: int) -> np.ndarray:
        """[vocab] of bool: what may come next. Raises BadRequest where nothing may."""
        self._mask_time.check(self._param)
        started_s = time.thread_time()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._mask_time.spent(time.thread_time() - started_s)
        found = np.zeros(vocab, dtype=bool)
        known = np.unpackbits(bits, bitorder="little")[:vocab]
        found[: len(known)] = known
        if self._matcher.is_error() or self._matcher.stop_reason() in _BROKEN or not found.any():
            raise self._broken(self._matcher.get_error() or "no token of the vocabulary can go on")
        return found

    def apply(self, scores: Tensor) -> None:
        """Leave only what the grammar allows."""
        banned = torch.from_numpy(~self.allowed(len(scores)))
        scores.masked_fill_(banned.to(scores.device), -torch.inf)

    def accept(self, token: int) -> None:
        """Go on behind the token."""
        if not self._matcher.consume_token(token):
            raise self._broken(self._matcher.get_error())

    def _broken(self, why: str) -> BadRequest:
        return BadRequest(f"{self._param} cannot be followed: {why:.{_SAID}}", param=self._param)


class CallConstraint(Adjustment):
    """Free text, in which every tool call that is begun follows a grammar."""

    def __init__(self, body: Constraint, marks: CallMarks) -> None:
        """`body`: after the opening mark, up to the closing one."""
        self._body = body
        self._marks = marks
        self._running: Constraint | None = None

    def fresh(self) -> "CallConstraint":
        """For another sequence."""
        return CallConstraint(self._body, self._marks)

    def apply(self, scores: Tensor) -> None:
        """Within a call only."""
        if self._running is not None:
            self._running.apply(scores)

    def accept(self, token: int) -> None:
        """See calls begin and end."""
        if self._running is not None:
            self._running.accept(token)
            if token == self._marks.close_id:
                self._running = None
        elif token == self._marks.open_id:
            self._running = self._body.fresh()


class GrammarCompiler:
    """Of one policy's tokenizer. Used in the event loop."""

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab: int,
        stop_token_ids: Iterable[int],
        workers: "GrammarWorkers",
        compile_s: float = COMPILE_S,
    ) -> None:
        """compile_s: longest that a request waits for its grammar."""
        self._tokenizer_json = tokenizer_json
        self._vocab = vocab
        self._stop_token_ids = tuple(sorted(stop_token_ids))
        self._workers = workers
        self._compile_s = compile_s
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        self._refused: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Grammars that a trial did not survive, and until when they are refused untried: they would hold up
        the next one, too."""
        self._source: TokenizerSource | None = None
        self._tokenizer: LLTokenizer | None = None

    async def compile(self, grammar: str, param: str) -> Constraint:
        """A constraint of its own. param: the request's field, for refusals. Raises BadRequest."""
        why, until = self._refused.get(grammar, ("", 0.0))
        if time.monotonic() < until:
            raise BadRequest(f"{param}{why}", param=param)
        compiled = self._compiled.get(grammar)
        if compiled is None:
            await self._try(grammar, param)
            compiled = _Compiled(await self._in_thread(grammar, param))
            _remember(self._compiled, grammar, compiled)
        elif compiled.is_slow:
            raise _too_slow(param)
        self._compiled.move_to_end(grammar)
        return Constraint(compiled.matcher.deep_copy(), param, MaskTime(compiled))

    async def _try(self, grammar: str, param: str) -> None:
        """In a process that can be ended. Raises BadRequest."""
        try:
            await self._workers.trials.run(grammar, self._tokenizer_source(), within_s=self._compile_s)
        except NoTrialFree:
            raise BadRequest(
                f"{param}: no place to compile its grammar was free within {self._compile_s:g} s; ask again "
                "when fewer constrained requests begin",
                param=param,
            ) from None
        except TrialTooLong:
            why = self._not_ready()
            _remember(self._refused, grammar, (why, time.monotonic() + _REFUSED_S))
            raise BadRequest(f"{param}{why}", param=param) from None
        except TrialEnded:
            why = (
                f" cannot be used: its grammar takes more than {MEMORY_BYTES >> 20} MiB of memory or "
                f"{cpu_seconds(self._compile_s)} s of processor time to compile; make it smaller"
            )
            _remember(self._refused, grammar, (why, math.inf))
            raise BadRequest(f"{param}{why}", param=param) from None

    async def _in_thread(self, grammar: str, param: str) -> "LLMatcher":
        loop = asyncio.get_running_loop()
        compiling = loop.run_in_executor(self._workers.threads, self._build, grammar, param)
        try:
            # As much again as in the trial, on a machine that is busier by now.
            async with asyncio.timeout(2 * self._compile_s):
                return await compiling
        except TimeoutError:
            raise BadRequest(f"{param}{self._not_ready()}", param=param) from None

    def _not_ready(self) -> str:
        return (
            f": its grammar was not ready after {self._compile_s:g} s; make it smaller, or ask again in "
            f"{_REFUSED_S:g} s"
        )

    def _tokenizer_source(self) -> TokenizerSource:
        if self._source is None:
            text = self._tokenizer_json()
            facts = f"{self._vocab} {self._stop_token_ids} {text}"
            digest = hashlib.sha256(facts.encode()).hexdigest()
            self._source = TokenizerSource(digest, text, self._vocab, self._stop_token_ids)
        return self._source

    def _build(self, grammar: str, param: str) -> "LLMatcher":
        """In a thread of the compiler; llguidance releases the interpreter meanwhile."""
        matcher = matcher_of(self._tokenizer or self._read_tokenizer(param), grammar)
        if matcher.is_error():
            raise BadRequest(f"{param} cannot be used: {matcher.get_error():.{_SAID}}", param=param)
        # The first mask is where a grammar that can never be followed shows.
        first = _Compiled(matcher.deep_copy())
        Constraint(first.matcher, param, MaskTime(first)).allowed(self._vocab)
        return matcher

    def _read_tokenizer(self, param: str) -> "LLTokenizer":
        source = self._tokenizer_source()
        try:
            self._tokenizer = tokenizer_of(source.json, source.vocab, source.stop_token_ids)
        except Exception as error:  # llguidance raises what its parts raise
            raise BadRequest(
                f"{param} is not supported for this model: llguidance cannot read its tokenizer: "
                f"{error!s:.{_SAID}}",
                param=param,
            ) from error
        return self._tokenizer


class GrammarWorkers:
    """What all compilers of an engine share: processes for trials, and threads."""

    def __init__(self) -> None:
        self.trials = GrammarTrials()
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")


def _remember(kept: OrderedDict[str, T], grammar: str, one: T) -> None:
    kept[grammar] = one
    if len(kept) > _KEPT:
        kept.popitem(last=False)
