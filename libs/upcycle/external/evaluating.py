"""An agent that is no model of ours, on a taskset, in this process and without the platform: evaluation only.

Each episode is played by `upcycle.harness` with its environment in a process of its own; a few at once, each
once. Nothing of it can be trained on: there are no tokens and no log-probabilities.
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from upcycle.environment.channel.frames import ChannelClosed
from upcycle.errors import Unavailable, UpcycleError
from upcycle.external.asking import require_model
from upcycle.external.dialects import Dialect
from upcycle.external.judging import Judges
from upcycle.external.naming import ExternalModel
from upcycle.external.player import ModelPlayer
from upcycle.external.prices import Price, price_of
from upcycle.external.server import PAUSES_S, ModelServer
from upcycle.local_runs import new_run_id
from upcycle.playing.blame import Blame, blame_for
from upcycle.playing.episode import (
    EpisodeOpened,
    OpenEnvironment,
    PlayedEpisode,
    PlayFailure,
    PlayLimits,
    play_episode,
)
from upcycle.playing.errors import AgentRefused, PlayerFailed, PlayRefused
from upcycle.playing.forking import EpisodeHosts
from upcycle.playing.runtime_hosts import opened_hosts
from upcycle.results import Run
from upcycle.runtimes import PlayRuntime
from upcycle.task_rows import EnvironmentRef, Task
from upcycle.trajectory_lines.writing import line_of_played
from upcycle.usage import Usage

MAX_CONCURRENT: Final = 8
"""Episodes at once, by default."""
OUR_BUG: Final = "sampler_error"
"""The word of docs/reference/failures.md for a bug of what plays."""


class _Kept(EpisodeOpened):
    """Keeps what was played of an episode whose agent gives up."""

    def __init__(self, task: Task) -> None:
        self.episode = PlayedEpisode(task)

    def on_opened(self, episode: PlayedEpisode) -> None:
        """It goes on growing."""
        self.episode = episode


@dataclass(frozen=True, slots=True)
class ExternalOptions:
    """Of an evaluation in this process. pauses_s: before each further request to a busy server. runtime: of
    the environments; None: each episode in a process of its own. done: task and attempt of episodes that are
    not played again."""

    group: int = 1
    max_concurrent: int = MAX_CONCURRENT
    limits: PlayLimits = field(default_factory=PlayLimits)
    pauses_s: tuple[float, ...] = PAUSES_S
    runtime: PlayRuntime | None = None
    done: frozenset[tuple[str, int]] = frozenset()

    def __post_init__(self) -> None:
        for name, value in (("group", self.group), ("max_concurrent", self.max_concurrent)):
            if value < 1:
                raise UpcycleError(f"{name} is {value}", "give at least 1")


@dataclass(frozen=True, slots=True)
class ExternalEpisode:
    """One episode: its result, and what was said. row: the line of trajectories.jsonl. attempt: at its task,
    from 0."""

    run: Run
    row: Mapping[str, Any]
    played: PlayedEpisode
    attempt: int


OnEpisode = Callable[[ExternalEpisode], None]


async def evaluate_tasks(
    tasks: Sequence[Task],
    model: ExternalModel,
    options: ExternalOptions = ExternalOptions(),
    *,
    run_id: str = "",
    on_ready: Callable[[], None] = lambda: None,
    on_episode: OnEpisode = lambda played: None,
) -> list[Run]:
    """Play each task `group` times; the runs of a task stand side by side.

    on_ready: called before the first is played. on_episode: called as each episode ends. Raises PlayRefused
    before any work for a key or a model that the server refuses, Unavailable where nothing answers,
    AgentRefused where that happens later, and what opened_hosts raises. An episode whose agent gives up, or
    that cannot be played, is missing, and its run says why.
    """
    price = price_of(model.model)
    server, judges = model.server(pauses_s=options.pauses_s), Judges(pauses_s=options.pauses_s)
    try:
        await require_model(model, server)
        evaluation = _Evaluation(model, server, judges, options, run_id or new_run_id(), price)
        async with AsyncExitStack() as ending:
            for environment in dict.fromkeys(task.environment for task in tasks):
                opened = opened_hosts(environment, options.runtime)
                evaluation.hosts[environment] = await ending.enter_async_context(opened)
            on_ready()
            return await evaluation.play(tasks, on_episode)
    finally:
        await server.close()
        await judges.close()


class _Evaluation:
    """hosts: where the episodes of each environment are played; filled before `play`."""

    def __init__(
        self,
        model: ExternalModel,
        server: ModelServer,
        judges: Judges,
        options: ExternalOptions,
        run_id: str,
        price: Price | None,
    ) -> None:
        self.hosts = dict[EnvironmentRef, EpisodeHosts]()
        self._model, self._server, self._judges, self._options = model, server, judges, options
        self._run_id, self._price = run_id, price
        self._dialect: Dialect = model.dialect(model.model)
        self._slots = asyncio.Semaphore(options.max_concurrent)

    async def play(self, tasks: Sequence[Task], on_episode: OnEpisode) -> list[Run]:
        """All of them."""

        async def one(task: Task, attempt: int) -> Run:
            async with self._slots:
                played = await self._play(task, attempt)
            on_episode(played)
            return played.run

        try:
            async with asyncio.TaskGroup() as playing:
                every = [(task, index) for task in tasks for index in range(self._options.group)]
                left = [one for one in every if (one[0].slug, one[1]) not in self._options.done]
                runs = [playing.create_task(one(task, index)) for task, index in left]
        except* (AgentRefused, PlayRefused) as refused:
            raise refused.exceptions[0] from None
        return [run.result() for run in runs]

    async def _play(self, task: Task, attempt: int) -> ExternalEpisode:
        """A failure that belongs to this episode alone leaves the others as they are."""
        player, kept, stopped = self._model.player(self._server, self._dialect), _Kept(task), None
        try:
            blame = await self._blame(kept, player)
        except (AgentRefused, PlayRefused):
            raise
        except (PlayerFailed, Unavailable, ChannelClosed) as error:
            during = "environment" if isinstance(error, ChannelClosed) else "agent"
            stopped = PlayFailure(during, error.kind, str(error))
            blame = Blame(failure=error.kind, detail=str(error))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            stopped = PlayFailure("playing", OUR_BUG, said, traceback.format_exc())
            blame = Blame(failure=OUR_BUG, detail=stopped.traceback.rstrip())
        tokens = player.tokens
        usage = Usage(
            cost=self._price.of(tokens) if self._price else None,
            prompt_tokens=tokens.prompt,
            completion_tokens=tokens.completion,
        )
        episode_id = f"{self._run_id}/{task.slug}/{attempt}"
        run = run_of(kept.episode, self._run_id, episode_id, blame, usage)
        await player.ended(run)
        row = line_of_played(kept.episode, run, stopped, self._model.name)
        return ExternalEpisode(run, row, kept.episode, attempt)

    async def _blame(self, kept: _Kept, player: ModelPlayer) -> Blame:
        """Play the episode; whose failure it is, where there is one."""
        task, limits = kept.episode.task, self._options.limits
        hosts = self.hosts[task.environment]
        host = await hosts.new(task)
        try:
            async with host.channel() as channel:
                environment = OpenEnvironment(channel, host.ended_how, self._judges.ask)
                kept.episode = await play_episode(task, environment, player, limits, kept)
        finally:
            await host.end()
        return await blame_for(kept.episode, hosts, limits, host.output())


def run_of(episode: PlayedEpisode, run_id: str, episode_id: str, blame: Blame, usage: Usage) -> Run:
    """The result of an episode that was played here."""
    result = episode.result
    return Run(
        task_slug=episode.task.slug,
        reward=result.score if result else 0.0,
        success=bool(result and result.success),
        trace_id="",
        episode_id=episode_id,
        failure=blame.failure,
        policy_failure=blame.policy_failure,
        trajectory=episode.transcript,
        answer=episode.ending.answer if episode.ending else "",
        run_id=run_id,
        usage=usage,
        failure_detail=blame.detail,
        turn_rewards=result.turn_rewards if result else (),
        family=episode.task.family,
    )
