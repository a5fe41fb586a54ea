"""Scenarios are generator functions, async or plain, that yield twice: the prompt, then the reward.

`answer = yield prompt` suspends the scenario until the agent has answered. `Scenario` is a declared function,
`ScenarioPlay` one execution of it. A function that does not yield exactly twice causes a typed error.
"""

import inspect
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from upcycle.environment.schema import CallSchema, call_schema
from upcycle.errors import ArgumentsInvalid, DefinitionError, RewardInvalid, ScenarioError, TasksetInvalid
from upcycle.generator import GeneratorFunction, Parent, ProposalFunction, made_arguments
from upcycle.guidance import Guidance, GuidanceFunction, guidance_of
from upcycle.prompts import Prompt, bounded_prompt, prompt_of
from upcycle.raised import RAISED, deed
from upcycle.rewards import EvaluationResult, evaluation_result
from upcycle.task_rows import EnvironmentRef, Task, canonical_json, not_json
from upcycle.transcripts import Answer

ScenarioFunction = Callable[..., AsyncGenerator[Any, Any] | Generator[Any, Any, Any]]

# Names that `Scenario.task` takes for itself.
RESERVED_ARGUMENTS = frozenset({"slug", "family"})


@dataclass(frozen=True, slots=True)
class Reference:
    """What solves a task: tool calls as (name, arguments), then the answer."""

    answer: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


ReferenceFunction = Callable[..., str | Reference]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A declared scenario. Calling it (or `.task(...)`) with arguments makes a Task."""

    name: str
    function: ScenarioFunction
    schema: CallSchema
    environment: EnvironmentRef = field(repr=False, compare=False)
    _golds: list[ReferenceFunction] = field(default_factory=list, repr=False, compare=False)
    _guides: list[GuidanceFunction] = field(default_factory=list, repr=False, compare=False)
    _generators: list[GeneratorFunction] = field(default_factory=list, repr=False, compare=False)
    _proposals: list[tuple["Scenario", ProposalFunction]] = field(
        default_factory=list, repr=False, compare=False
    )
    _left_overs: list[ProposalFunction] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, *unnamed: Any, **arguments: Any) -> Task:
        return self.task(*unnamed, **arguments)

    def task(
        self, *unnamed: Any, slug: str | None = None, family: str | None = None, **arguments: Any
    ) -> Task:
        """One runnable task.

        slug: unique name in a taskset, by default derived from the content. family: the group of tasks over
        which regressions are counted, by default the scenario's name. Raises ArgumentsInvalid,
        TasksetInvalid.
        """
        if unnamed:
            names = ", ".join(f"{name}=…" for name in self.schema.annotations)
            raise ArgumentsInvalid(
                f"{self.name}: argument {unnamed[0]!r:.80} has no name", f"write {self.name}({names})"
            )
        self.schema.check(arguments)
        try:
            args_json = canonical_json(arguments)
        except TasksetInvalid as error:
            raise TasksetInvalid(f"{self.name}.{not_json(arguments)}: {error.message}", error.hint) from error
        return Task(self.environment, self.name, args_json, slug or "", family or self.name)

    def gold(self, function: ReferenceFunction) -> ReferenceFunction:
        """Declare what solves a task, for `upcycle check`.

        It takes the scenario's arguments and returns the answer, or a Reference with the tool calls before
        it. No agent sees it.

            @investigate.gold
            def solved(seed: int) -> str: ...

        Raises DefinitionError for a second one.
        """
        if self._golds:
            raise DefinitionError(f"scenario {self.name!r} has two gold answers", "declare one function")
        self._golds.append(function)
        return function

    def reference(self, arguments: Mapping[str, Any]) -> Reference | None:
        """What solves the task with these arguments; None where no gold answer is declared. Raises
        ScenarioError, from what it raised."""
        if not self._golds:
            return None
        checked = self.schema.check(arguments)
        try:
            found = self._golds[0](**checked)
        except RAISED as error:
            raise ScenarioError(f"the gold answer of scenario {self.name!r} {deed(error)}") from error
        return Reference(found) if isinstance(found, str) else found

    def guidance(self, function: GuidanceFunction) -> GuidanceFunction:
        """Declare what an agent reads in a second attempt at a task that it failed, in training runs with
        guidance `on_failure`: a plan, what went wrong, a hint.

        It takes the failed attempt, an Answer with its trajectory, and the scenario's arguments, plain or
        async. It returns a Guidance, whose parts are recorded as what they are, or a plain text. They end the
        prompt; one attempt guides a whole group, so the same attempt must give the same guidance.

            @investigate.guidance
            def guide(failed: Answer, seed: int) -> Guidance: ...

        Raises DefinitionError for a second one.
        """
        if self._guides:
            raise DefinitionError(f"scenario {self.name!r} has two guidances", "declare one function")
        self._guides.append(function)
        return function

    @property
    def is_guided(self) -> bool:
        """Whether it declares guidance."""
        return bool(self._guides)

    async def guide(self, failed: Answer, arguments: Mapping[str, Any]) -> Guidance:
        """The guidance after a failed attempt at the task with these arguments. Raises ArgumentsInvalid, and
        ScenarioError where none is declared, and what is declared fails."""
        if not self._guides:
            raise ScenarioError(
                f"scenario {self.name!r} declares no guidance", "write @scenario.guidance, or train without"
            )
        return await guidance_of(self._guides[0], self.name, failed, self.schema.check(arguments))

    def generator(self, function: GeneratorFunction) -> GeneratorFunction:
        """Declare what makes a new task of one that a whole group failed, or solved, in training runs with
        `new_tasks`.

        It takes a seed and the Parent, plain or async, and returns the arguments of the new task. The same
        seed and parent must give the same arguments; others are what makes tasks new.

            @investigate.generator
            def shorter(seed: int, parent: Parent) -> dict[str, Any]: ...

        Raises DefinitionError for a second one.
        """
        if self._generators:
            raise DefinitionError(f"scenario {self.name!r} has two generators", "declare one function")
        self._generators.append(function)
        return function

    @property
    def generates(self) -> bool:
        """Whether it declares a generator."""
        return bool(self._generators)

    async def generate(self, seed: int, parent: Parent) -> dict[str, Any]:
        """The arguments of a new task. Raises ScenarioError where no generator is declared (of a parent with
        a proposal: no proposer), and where what is declared fails. A parent with a proposal that is not
        solved is a task of this scenario, and the proposal a failed attempt at it."""
        if parent.proposal is not None:
            is_left = bool(self._left_overs) and not parent.solved
            read = self._left_by if is_left else self._proposed
            return await read(parent.arguments, parent.proposal)
        if not self._generators:
            raise ScenarioError(
                f"scenario {self.name!r} declares no generator",
                "write @scenario.generator, or train without new tasks",
            )
        named, function = f"the generator of scenario {self.name!r}", self._generators[0]
        return await made_arguments(lambda: function(seed, parent), named, self.name, self.schema.check)

    def proposed_by(self, proposer: "Scenario") -> Callable[[ProposalFunction], ProposalFunction]:
        """Declare that answers to another scenario propose tasks of this one, in training runs with
        `self_play`.

        An answer with success is a proposal. The function takes it, an Answer with its trajectory, and the
        proposer's arguments, plain or async, and returns this scenario's arguments. The same answer must give
        the same arguments.

            @repair.proposed_by(inject)
            def bug(proposal: Answer, module: str) -> dict[str, Any]: ...

        Raises DefinitionError for a second one, and for a scenario that proposes its own tasks.
        """
        if proposer is self:
            raise DefinitionError(
                f"scenario {self.name!r} proposes its own tasks",
                "declare another scenario that proposes them",
            )

        def declare(function: ProposalFunction) -> ProposalFunction:
            if self._proposals:
                raise DefinitionError(f"scenario {self.name!r} has two proposers", "declare one function")
            self._proposals.append((proposer, function))
            return function

        return declare

    def left_over(self, function: ProposalFunction) -> ProposalFunction:
        """Declare what a failed attempt at a task of this scenario leaves, as another task of it, in training
        runs with `self_play_order` 2 or more.

        The function takes the attempt, an Answer with its trajectory, and the arguments of the task, plain or
        async, and returns those of the new one. The same attempt must give the same arguments.

            @repair.left_over
            def still_broken(failed: Answer, source: str) -> dict[str, Any]: ...

        Raises DefinitionError for a second one.
        """
        if self._left_overs:
            raise DefinitionError(f"scenario {self.name!r} has two left overs", "declare one function")
        self._left_overs.append(function)
        return function

    @property
    def leaves_tasks(self) -> bool:
        """Whether it declares what a failed attempt leaves."""
        return bool(self._left_overs)

    @property
    def proposer(self) -> str:
        """Name of the scenario whose answers propose its tasks; "" where none does."""
        return self._proposals[0][0].name if self._proposals else ""

    async def _proposed(self, arguments: Mapping[str, Any], proposal: Answer) -> dict[str, Any]:
        if not self._proposals:
            raise ScenarioError(
                f"no scenario proposes tasks of scenario {self.name!r}",
                "write @scenario.proposed_by(another), or train without self_play",
            )
        proposer, function = self._proposals[0]
        checked = proposer.schema.check(arguments)
        named = f"the proposal of scenario {proposer.name!r} for {self.name!r}"
        return await made_arguments(
            lambda: function(proposal, **checked), named, self.name, self.schema.check
        )

    async def _left_by(self, arguments: Mapping[str, Any], failed: Answer) -> dict[str, Any]:
        function, checked = self._left_overs[0], self.schema.check(arguments)
        named = f"what a failed attempt at scenario {self.name!r} leaves"
        return await made_arguments(lambda: function(failed, **checked), named, self.name, self.schema.check)

    def play(self, arguments: Mapping[str, Any]) -> "ScenarioPlay":
        """A new execution with these arguments. Raises ArgumentsInvalid."""
        return ScenarioPlay(self.name, self.function(**self.schema.check(arguments)))


def declare_scenario(function: ScenarioFunction, name: str, environment: EnvironmentRef) -> Scenario:
    """The scenario that a function of `environment` declares. Raises DefinitionError."""
    if not (inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)):
        raise DefinitionError(
            f"scenario {name!r} is not a generator function",
            "write `answer = yield prompt` and then `yield reward` in it",
        )
    schema = call_schema(function, name=name)
    clash = sorted(RESERVED_ARGUMENTS & set(schema.annotations))
    if clash:
        raise DefinitionError(
            f"scenario {name!r}: argument {clash[0]!r} is reserved", "task() takes it: rename yours"
        )
    return Scenario(name, function, schema, environment)


class ScenarioPlay:
    """One execution of a scenario: call `start` once, then `grade` once."""

    def __init__(self, name: str, generator: AsyncGenerator[Any, Any] | Generator[Any, Any, Any]) -> None:
        self.name = name
        self._generator = generator

    async def start(self) -> Prompt:
        """Run the scenario to its first yield and return the prompt. Raises ScenarioError if it yields
        none.
        """
        value = await self._advance(None, "before its first yield (the prompt)")
        named = self._named()
        return bounded_prompt(prompt_of(value, named), named)

    async def grade(self, answer: Answer) -> EvaluationResult:
        """Resume the scenario with the answer, return the reward that it yields, and run it to its end.

        Raises ScenarioError if it raises or does not yield exactly once more, and RewardInvalid.
        """
        value = await self._advance(answer, "before its second yield (the reward)")
        try:
            result = evaluation_result(value)
        except RewardInvalid as error:
            named = self._named()
            await self.close()
            raise RewardInvalid(f"{named}: {error.message}", error.hint) from error
        await self._finish()
        return result

    async def close(self) -> None:
        """End the scenario without a grade; its `finally` blocks run. Raises ScenarioError if they raise."""
        try:
            if isinstance(self._generator, AsyncGenerator):
                await self._generator.aclose()
            else:
                self._generator.close()
        except RAISED as error:
            raise ScenarioError(f"{self._named(error)} {deed(error, 'while closing')}") from error

    async def _advance(self, sent: Any, where: str) -> Any:
        try:
            return await self._step(sent)
        except (StopAsyncIteration, StopIteration) as error:
            raise ScenarioError(
                f"{self._named()} ended {where}", "a scenario yields twice: the prompt, then the reward"
            ) from error
        except RAISED as error:
            raise ScenarioError(f"{self._named(error)} {deed(error, where)}") from error

    async def _finish(self) -> None:
        try:
            await self._step(None)
        except (StopAsyncIteration, StopIteration):
            return
        except RAISED as error:
            raise ScenarioError(f"{self._named(error)} {deed(error, 'after its second yield')}") from error
        named = self._named()
        await self.close()
        raise ScenarioError(f"{named} yielded a third time", "yield the prompt, then the reward")

    def _named(self, error: BaseException | None = None) -> str:
        """`scenario 'ask' (env.py:12)`: where it raised, where it yielded, or, of one that ended, where it
        is declared."""
        kind = "ag" if isinstance(self._generator, AsyncGenerator) else "gi"
        code, frame = (getattr(self._generator, f"{kind}_{part}") for part in ("code", "frame"))
        line = code.co_firstlineno if frame is None else frame.f_lineno
        for raised in traceback.walk_tb(error.__traceback__ if error is not None else None):
            line = raised[1] if raised[0].f_code is code else line
        return f"scenario {self.name!r} ({PurePath(code.co_filename).name}:{line})"

    def _step(self, sent: Any) -> Awaitable[Any]:
        if isinstance(self._generator, AsyncGenerator):
            return self._generator.asend(sent)
        return _stepped(self._generator, sent)


async def _stepped(generator: Generator[Any, Any, Any], sent: Any) -> Any:
    # A StopIteration cannot leave a coroutine: it would surface as a RuntimeError.
    try:
        return generator.send(sent)
    except StopIteration as ended:
        raise StopAsyncIteration from ended
