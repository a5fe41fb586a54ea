"""What the handlers share: served policies by name, and running sequences from request to result."""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from embedded_engine.adjusting import Adjustment, Biased, Penalised
from embedded_engine.constraints import COMPILE_S, CallConstraint, Constraint, GrammarCompiler, GrammarWorkers
from embedded_engine.engine import EmbeddedEngine
from embedded_engine.errors import BadRequest, EngineDead, UnknownModel
from embedded_engine.http.answer_form import AnswerForm
from embedded_engine.http.bodies import SamplingBody
from embedded_engine.http.sampling_fields import (
    Defaults,
    adjusted_by,
    check_max_tokens,
    logit_bias_of,
    penalties_of,
    sampling_spec,
)
from embedded_engine.http.text import Text
from embedded_engine.sampling import SamplingSpec
from embedded_engine.sequences import ERROR, Part, Progress, Sequence

_MAX_N = 64


@dataclass(frozen=True, slots=True)
class Served:
    """One policy as the wire knows it."""

    name: str
    root: str
    text: Text
    defaults: Defaults
    grammars: GrammarCompiler
    created: int

    async def constraint(self, form: AnswerForm | None) -> Constraint | CallConstraint | None:
        """What keeps an answer in its form. Raises BadRequest."""
        if form is None:
            return None
        constraint = await self.grammars.compile(form.grammar, form.param)
        if form.calls is None:
            return constraint
        return CallConstraint(constraint, form.calls)


@dataclass(frozen=True, slots=True)
class SamplingWish:
    """What the routes spell in different ways. last_text: a text after which the sequence ends."""

    logprobs: int | None
    max_tokens: int | None
    form: AnswerForm | None = None
    last_text: str | None = None
    last_token: int | None = None
    """That text, where it is one token."""

    def ended_early(self, spec: SamplingSpec) -> SamplingSpec:
        """The spec, also ending after `last_text`."""
        if self.last_text is None:
            return spec
        if self.last_token is None:
            return replace(spec, stop=(*spec.stop, self.last_text), unsaid_stops=frozenset({self.last_text}))
        ends = frozenset({self.last_token})
        return replace(spec, stop_token_ids=spec.stop_token_ids | ends, unsaid_stops=ends)


class Serving:
    """Served policies by name, and the way from a request body to finished sequences."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        directory: Path,
        on_end: Callable[[str, Sequence, float], None],
        *,
        compile_s: float = COMPILE_S,
    ) -> None:
        """`on_end`: called with (served name, sequence, now) when a sequence ended. `compile_s`: longest that
        a request waits for its grammar."""
        self.engine = engine
        self._workers = GrammarWorkers()
        self._compile_s = compile_s
        self._on_end = on_end
        self._served: dict[str, Served] = {}
        self._ids = itertools.count()
        self._salt = secrets.token_hex(4)
        self.register(engine.main, directory)

    def register(self, name: str, directory: Path) -> Served:
        """Make a policy's tokenizer and defaults known under `name`. Raises InvalidModelDir."""
        text = Text(directory)
        stop_ids = text.chat.stop_token_ids
        vocab = self.engine.runner_of(name).model.config.vocab_size
        compiler = GrammarCompiler(text.as_json, vocab, stop_ids, self._workers, self._compile_s)
        defaults = Defaults.of(directory, stop_ids)
        served = Served(name, str(directory), text, defaults, compiler, int(time.time()))
        self._served[name] = served
        return served

    def forget(self, name: str) -> None:
        """The opposite of `register`."""
        self._served.pop(name, None)

    def resolve(self, name: str | None) -> Served:
        """The policy of a request; none named means the main one. Raises UnknownModel."""
        found = self._served.get(name or self.engine.main)
        if found is None:
            raise UnknownModel(name)
        return found

    async def close(self, _: object = None) -> None:
        """End the processes that try grammars."""
        await self._workers.trials.close()

    def new_id(self, prefix: str) -> str:
        """A unique request id."""
        return f"{prefix}-{self._salt}{next(self._ids):08x}"

    def check_prompt(self, token_ids: list[int]) -> None:
        """Raises BadRequest, in vLLM's words, for a prompt that cannot be continued."""
        limit = self.engine.limits.max_len
        vocab = self.engine.runner_of(self.engine.main).model.config.vocab_size
        if not token_ids:
            raise BadRequest("You must pass at least one prompt", param="prompt")
        if len(token_ids) >= limit:
            raise BadRequest(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains "
                f"{len(token_ids)} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={len(token_ids)})",
                param="input_tokens",
            )
        worst = max(token_ids)
        if worst >= vocab:
            raise BadRequest(f"Token id {worst} is out of vocabulary")

    async def sequences(
        self, served: Served, body: SamplingBody, prompt: list[int], wish: SamplingWish
    ) -> list[Sequence]:
        """`body.n` sequences of one prompt; each draws from its own stream of randomness. Raises BadRequest,
        in vLLM's words where vLLM has the same rule."""
        if not 1 <= body.n <= _MAX_N:
            raise BadRequest(f"n must be at least 1 and at most {_MAX_N}, got {body.n}.", param="n")
        self.check_prompt(prompt)
        spec = self._spec(served, body, len(prompt), wish)
        penalties, bias = penalties_of(body), logit_bias_of(body, self._vocab(served))
        constraint = await served.constraint(wish.form)

        def adjustments() -> Iterator[Adjustment]:
            if constraint is not None:
                yield constraint.fresh()
            if bias:
                yield Biased(bias, self.engine.device)
            if not penalties.is_neutral:
                yield Penalised(penalties, prompt, self._vocab(served), self.engine.device)

        return [
            Sequence(prompt, replace(spec, seed=spec.seed + index), adjustments=tuple(adjustments()))
            for index in range(body.n)
        ]

    def _spec(self, served: Served, body: SamplingBody, prompt_len: int, wish: SamplingWish) -> SamplingSpec:
        limit = self.engine.limits.max_len
        room = limit - prompt_len
        wanted = room if wish.max_tokens is None else wish.max_tokens
        check_max_tokens(wanted, limit)
        spec = sampling_spec(body, served.defaults, logprobs=wish.logprobs, wanted=wanted, room=room)
        form = wish.form
        if form is not None and (body.ignore_eos or body.min_tokens):
            name = "ignore_eos" if body.ignore_eos else "min_tokens"
            raise BadRequest(
                f"{name} cannot be combined with {form.param}: the form says where an answer ends", param=name
            )
        names = adjusted_by(body) + (() if form is None else (form.param,))
        return replace(wish.ended_early(spec), adjusted_by=names)

    def _vocab(self, served: Served) -> int:
        return self.engine.runner_of(served.name).model.config.vocab_size

    async def run(self, served: Served, sequences: list[Sequence]) -> None:
        """Return when every sequence ended. Cancelled (the client is gone): they are aborted."""
        done = asyncio.get_running_loop().create_future()
        left = len(sequences)

        def one_ended(_: Progress) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not done.done():
                done.set_result(None)

        for sequence in sequences:
            sequence.listener = one_ended
        self.engine.submit(served.name, sequences)
        try:
            await done
        except asyncio.CancelledError:
            self.engine.abort(served.name, sequences)
            raise
        self._ended(served, sequences)

    async def stream(
        self, served: Served, sequences: list[Sequence]
    ) -> AsyncGenerator[tuple[int, Part], None]:
        """(index of the sequence, what is new of it) as it comes. Closed early: the sequences are aborted."""
        news: asyncio.Queue[tuple[int, Progress]] = asyncio.Queue()

        def listener_of(index: int) -> Callable[[Progress], None]:
            return lambda progress: news.put_nowait((index, progress))

        for index, sequence in enumerate(sequences):
            sequence.streams, sequence.listener = True, listener_of(index)
        self.engine.submit(served.name, sequences)
        left, shown = len(sequences), [0] * len(sequences)
        try:
            while left:
                index, progress = await news.get()
                left -= progress.finish_reason is not None
                if progress.num_tokens == shown[index] and progress.finish_reason is None:
                    continue
                part = Part(sequences[index], shown[index], progress.num_tokens, progress.finish_reason)
                shown[index] = progress.num_tokens
                yield index, part
        finally:
            if left:
                self.engine.abort(served.name, sequences)
        self._ended(served, sequences)

    def _ended(self, served: Served, sequences: list[Sequence]) -> None:
        now_s = time.monotonic()
        for sequence in sequences:
            self._on_end(served.name, sequence, now_s)
        for sequence in sequences:
            if sequence.finish_reason == ERROR and sequence.at_fault is not None:
                raise BadRequest(sequence.error or "", param=sequence.at_fault)
            if sequence.finish_reason == ERROR:
                raise EngineDead(sequence.error or "the sequence failed")
