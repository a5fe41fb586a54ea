"""Plays each task's gold answer and its cheapest cheats here, and names what pays for them.

Nothing is forked and no platform takes part: scenarios and tools run in this process, one after another, as
the environment's file declares them.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import ArgumentsInvalid, ToolExited, ToolFailed, UpcycleError
from upcycle.evenly import evenly
from upcycle.images import text_of_prompt
from upcycle.leaks import leaked, secret_arguments
from upcycle.play_deadlines import play_deadline
from upcycle.probes import NUM_IDLE_CALLS, OF_ANOTHER, OF_MODEL, Probe, idle_arguments, probes_of
from upcycle.prompts import Prompt
from upcycle.rewards import EvaluationResult, SubScore
from upcycle.scenario import Reference, Scenario
from upcycle.transcripts import Answer, ToolUse, Transcript, Turn
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.environment.core import Environment
    from upcycle.task_rows import Task

MAX_CHEAT: Final = 0.05
"""A cheat that earns more is named."""
MAX_OVERDUE: Final = 3
"""Plays that do not end in time, after which no more is played."""
_NOT_A_ZERO: Final = "is taken for a failure of the outside, so it is played again instead of earning 0"


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """max_cheat: what a cheat may earn. max_tasks: of more, so many are played, evenly apart.
    play_s: of one play; total_s: of all of them."""

    max_cheat: float = MAX_CHEAT
    max_tasks: float = 200
    play_s: float = 60.0
    total_s: float = 600.0


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """Something to mend. kind: gold, cheat, raises, external, leak. detail: what was seen, and of whom.
    printed: the end of what that play printed, where it was kept."""

    kind: str
    task: str
    detail: str
    printed: str = ""

    def __str__(self) -> str:
        return f"{self.task}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Validation:
    """What `environment.validate` found. num_tasks: that were played, of num_given; stopped: why the rest of
    those that were to be played was not; "" where all were. num_plays: gold answers and cheats. gold: the
    reward of each task's gold answer, where it has one; cheats: the best reward of each kind of cheat over
    all tasks."""

    num_tasks: int
    findings: tuple[CheckFinding, ...]
    gold: dict[str, float] = field(default_factory=dict)
    cheats: dict[str, float] = field(default_factory=dict)
    rewards: tuple[float, ...] = ()
    num_given: int = 0
    num_plays: int = 0
    stopped: str = ""

    @property
    def is_clean(self) -> bool:
        """Nothing was found."""
        return not self.findings

    @property
    def spread(self) -> float:
        """The largest difference between two rewards of the same play of cheats and gold, 0 to 1: without
        any, no group of attempts can differ."""
        return max(self.rewards, default=0.0) - min(self.rewards, default=0.0)


OnTask = Callable[[int, int, str], None]
"""Is told of each task before it is played: its number from 1, how many there are, its slug."""


class PlayWatcher:
    """Is told of each play before it begins, and keeps what it prints; this one keeps nothing."""

    def begins(self, slug: str, who: str) -> None:
        """A play of the task. who: what plays, as findings name it."""

    def printed(self) -> str:
        """The end of what the play printed so far."""
        return ""


async def validate(
    environment: "Environment",
    tasks: Iterable["Task"],
    limits: CheckLimits = CheckLimits(),
    on_task: OnTask | None = None,
    watcher: PlayWatcher | None = None,
    answers: Sequence[str] = (),
) -> Validation:
    """Play gold and cheats of the tasks. answers: of a model, each of which is played at every task. Raises
    UpcycleError for a scenario that cannot be played at all."""
    rows = list(tasks)
    if not rows:
        raise UpcycleError("nothing to check: there is no task", "give a taskset, or tasks of scenarios")
    await environment.open()
    try:
        chosen = evenly(rows, max(1, int(limits.max_tasks)))
        check = _Check(environment, chosen, limits, watcher or PlayWatcher(), answers)
        return await check.run(len(rows), on_task or (lambda *_: None))
    finally:
        await environment.close()


class _Overdue(Exception):
    """A play did not end in time."""


class _Check:
    def __init__(
        self,
        environment: "Environment",
        tasks: Sequence["Task"],
        limits: CheckLimits,
        watcher: PlayWatcher,
        answers: Sequence[str],
    ) -> None:
        self._answers = answers
        self._environment = environment
        self._tasks = tasks
        self._limits = limits
        self._watcher = watcher
        self._num_overdue = self._num_plays = 0
        self._references = [_reference_of(self._scenario(task), task.args) for task in tasks]
        self._golds = [one.answer for one in self._references if one is not None]
        self._texts = [text for task in tasks for text in _texts(task.args)]
        self._secrets = [secret_arguments(task.args) for task in tasks]
        self._findings: list[CheckFinding] = []
        self._raised: dict[tuple[str, str], int] = {}
        """Task and what was raised there -> its place in the findings."""
        self._raised_again: Counter[int] = Counter()
        self._gold: dict[str, float] = {}
        self._cheats: dict[str, float] = {}
        self._rewards: list[float] = []
        self._by_average: dict[str, list[float]] = {}
        """Cheat, as findings name it -> what it earned at each task."""

    async def run(self, num_given: int, on_task: OnTask) -> Validation:
        """Every task, one after another, as far as the limits go."""
        stop_at_s, num_tasks, stopped = time.monotonic() + self._limits.total_s, 0, ""
        for at, task in enumerate(self._tasks):
            if stopped := self._why_stop(stop_at_s):
                break
            num_tasks += 1
            on_task(num_tasks, len(self._tasks), task.slug)
            with suppress(_Overdue):
                await self._check(task, self._references[at], self._secrets[at])
        self._judge_by_average()
        self._count_the_same()
        found, rewards = tuple(dict.fromkeys(self._findings)), tuple(self._rewards)
        played = (num_given, self._num_plays, stopped)
        return Validation(num_tasks, found, self._gold, self._cheats, rewards, *played)

    def _why_stop(self, stop_at_s: float) -> str:
        if self._num_overdue >= MAX_OVERDUE:
            return f"{self._num_overdue} plays did not end within {self._limits.play_s:g} s"
        return f"{self._limits.total_s:g} s are over" if time.monotonic() > stop_at_s else ""

    async def _check(self, task: "Task", gold: Reference | None, secrets: Sequence[str]) -> None:
        prompt = await self._prompt(task)
        others = [one for of_task in self._secrets for one in of_task] + self._golds
        hidden = [*secrets, *([gold.answer] if gold is not None else [])]
        self._note_leaks(task, hidden, prompt, others, "its prompt")
        if gold is None:
            missing = "no gold answer: declare one with @scenario.gold"
            self._findings.append(CheckFinding("gold", f"scenario {task.scenario}", missing))
        else:
            await self._play_gold(task, gold)
        idle = self._idle_calls()
        own = gold.answer if gold is not None else None
        for probe in probes_of(prompt, own, self._golds, self._texts, idle):
            await self._play_cheat(task, probe)
        if own is not None:
            for answer in (one for one in self._answers if not leaked([own], one)):
                await self._play_cheat(task, Probe(OF_MODEL, answer))

    async def _play_gold(self, task: "Task", gold: Reference) -> None:
        result = await self._play(task, Probe("gold", gold.answer, tuple(gold.calls)))
        if result is None:
            return
        self._gold[task.slug] = result.score
        self._rewards.append(result.score)
        if not result.success:
            earned = f"its gold answer earns {result.score:.3g} and is no success"
            self._found("gold", task, f"{earned}{_tree(result)}")

    async def _play_cheat(self, task: "Task", probe: Probe) -> None:
        result = await self._play(task, probe)
        if result is None:
            return
        self._rewards.append(result.score)
        self._cheats[probe.name] = max(self._cheats.get(probe.name, 0.0), result.score)
        if probe.name in (OF_ANOTHER, OF_MODEL):
            name = f"{OF_MODEL} ({probe.answer[:40]!r})" if probe.name == OF_MODEL else OF_ANOTHER
            self._by_average.setdefault(name, []).append(result.score)
        elif result.score > self._limits.max_cheat or result.success:
            earned = f"{probe.name} ({probe.answer[:40]!r}) earns {result.score:.3g}"
            self._found("cheat", task, f"{earned}, limit {self._limits.max_cheat:g}{_tree(result)}")

    def _judge_by_average(self) -> None:
        """Cheats that play one answer at many tasks. Two tasks may share an answer by chance, so the mean
        over few tasks has to be clearly too high: by two standard errors."""
        for name, earned in self._by_average.items():
            mean = statistics.fmean(earned)
            error = statistics.stdev(earned) / math.sqrt(len(earned)) if len(earned) > 1 else 0.0
            if mean - 2 * error > self._limits.max_cheat:
                detail = f"{name} earns {mean:.3g} on average, limit {self._limits.max_cheat:g}"
                self._findings.append(CheckFinding("cheat", amount(len(earned), "task"), detail))

    def _raises(self, task: "Task", who: str, error: UpcycleError) -> None:
        """A scenario that fails in the same way whatever is answered is one finding."""
        at = self._raised.setdefault((task.slug, str(error)), len(self._findings))
        if at == len(self._findings):
            self._found("raises", task, f"{who}: {error}")
        else:
            self._raised_again[at] += 1

    def _count_the_same(self) -> None:
        for at, count in self._raised_again.items():
            finding = self._findings[at]
            said = f"{finding.detail} (the same in {amount(count, 'other play')})"
            self._findings[at] = replace(finding, detail=said)

    async def _play(self, task: "Task", probe: Probe) -> EvaluationResult | None:
        play = self._scenario(task).play(task.args)
        self._num_plays += 1
        who = f"{probe.name} ({probe.answer[:40]!r})"
        self._watcher.begins(task.slug, who)
        try:
            async with play_deadline(self._limits.play_s):
                await play.start()
                transcript = await self._transcript(probe)
                return await play.grade(Answer(probe.answer, transcript))
        except TimeoutError:
            self._overdue(task, f"{probe.name}: not graded")
        except UpcycleError as error:
            if self._environment.is_external(error):
                self._found("external", task, f"{probe.name} {_NOT_A_ZERO}: {error}")
            else:
                self._raises(task, who, error)
        finally:
            await play.close()
        return None

    async def _transcript(self, probe: Probe) -> Transcript:
        """Of its calls, with the states that an episode would have."""
        states, uses = self._environment.new_states(), []
        if states is not None:
            await states.first()
        for name, arguments in probe.calls:
            uses.append(await self._use(name, arguments))
            if states is not None:
                await states.next()
        if states is not None:
            await states.next()
        turns = (Turn("", tuple(uses)), Turn(probe.answer)) if uses else (Turn(probe.answer),)
        return Transcript(turns, states.values if states is not None else ())

    async def _use(self, name: str, arguments: Any) -> ToolUse:
        """Raises ToolExited: a tool that ends its process is no answer to the agent."""
        try:
            result = await self._environment.try_tool(name, arguments)
        except ToolExited:
            raise
        except (ArgumentsInvalid, ToolFailed) as error:
            if self._environment.is_external(error):
                raise
            return ToolUse(name, arguments, str(error), is_error=True)
        return ToolUse(name, arguments, result.text, result.is_error)

    def _overdue(self, task: "Task", what: str) -> None:
        """The other plays of this task would not end either."""
        self._num_overdue += 1
        self._found("raises", task, f"{what} within {self._limits.play_s:g} s")
        raise _Overdue

    async def _prompt(self, task: "Task") -> str:
        play = self._scenario(task).play(task.args)
        self._watcher.begins(task.slug, "its prompt, and its tools called for nothing")
        prompt: Prompt = ""
        try:
            async with play_deadline(self._limits.play_s):
                prompt = await play.start()
                await self._look_at_tools(task)
        except TimeoutError:
            self._overdue(task, "its tools did not answer" if prompt else "it gave no prompt")
        finally:
            await play.close()
        return text_of_prompt(prompt)

    async def _look_at_tools(self, task: "Task") -> None:
        """What a tool says for nothing may not be what the agent has to find."""
        secrets = self._secrets[self._tasks.index(task)]
        others = [one for of_task in self._secrets for one in of_task]
        for name, arguments in self._idle_calls().calls[: len(self._environment.tools)]:
            try:
                use = await self._use(name, arguments)
            except ToolExited as error:
                self._raises(task, "its tools", error)
                continue
            self._note_leaks(task, secrets, use.result, others, f"what tool {name} says to {dict(arguments)}")

    def _note_leaks(
        self, task: "Task", secrets: Sequence[str], text: str, others: Sequence[str], where: str
    ) -> None:
        for secret in leaked(secrets, text, others):
            self._found("leak", task, f"{where} holds {secret[:60]!r}, which the agent has to find")

    def _idle_calls(self) -> Reference:
        tools = self._environment.tools.items()
        calls = tuple((name, idle_arguments(tool.spec.parameters)) for name, tool in tools)
        return Reference("", calls * NUM_IDLE_CALLS)

    def _scenario(self, task: "Task") -> Scenario:
        return self._environment.scenario_named(task.scenario)

    def _found(self, kind: str, task: "Task", detail: str) -> None:
        self._findings.append(CheckFinding(kind, task.slug, detail, self._watcher.printed()))


def _reference_of(scenario: Scenario, arguments: dict[str, Any]) -> Reference | None:
    """The declared gold answer, else the argument that holds what the agent has to find."""
    declared = scenario.reference(arguments)
    if declared is not None:
        return declared
    secrets = secret_arguments(arguments)
    return Reference(secrets[0]) if len(secrets) == 1 else None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _tree(result: EvaluationResult) -> str:
    """Which graders paid."""
    paid = [f"{one.name} {one.value:.3g}" for one in _leaves(result.subscores) if one.value and one.weight]
    return f"; paid by {', '.join(paid)}" if paid else ""


def _leaves(parts: Sequence[SubScore]) -> Iterator[SubScore]:
    for part in parts:
        if part.children:
            yield from _leaves(part.children)
        else:
            yield part
