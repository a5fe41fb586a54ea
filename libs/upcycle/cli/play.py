"""`upcycle play`."""

import asyncio
import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, result_console
from upcycle.harness.context import STOP
from upcycle.playing.budgets import limits_of
from upcycle.playing.episode import MAX_TURNS, PlayedEpisode, PlayLimits
from upcycle.playing.errors import PlayRefused

if TYPE_CHECKING:
    from upcycle.cli.play_view import PlayView
    from upcycle.harness.chat import ChatPlayer
    from upcycle.playing.hosting import EnvironmentHost
    from upcycle.runtimes import ChosenRuntime
    from upcycle.tasks import Task, Taskset

Turns = Annotated[int, Parameter(name="--max-turns")]


def play(
    task: str,
    /,
    *,
    script: str = "",
    agent: str = "",
    temperature: float | None = None,
    max_turns: Turns = MAX_TURNS,
    max_tokens_per_episode: int | None = None,
    context: str = STOP,
    runtime: str = "",
    in_process: bool = False,
    keep: bool = True,
    as_json: JsonFlag = False,
) -> int:
    """Play one episode here, without the platform: you, a script, or a model behind any OpenAI URL.

    - you, at the keyboard: `upcycle play tasks.py`
    - a function `reply(task, messages)`: `upcycle play tasks.py:SLUG --script player.py`
    - a model: `upcycle play tasks.py --agent openai:http://127.0.0.1:8000/v1#MODEL`

    :param task: a tasks file (.py, .json, .jsonl, .csv), then its first task; or FILE:SLUG.
    :param script: player: a .jsonl file, one turn a line, or player.py[:function]: reply(task, messages).
    :param agent: player: openai:URL#model (key in UPCYCLE_AGENT_KEY), openai:URL, claude, openai, gemini.
    :param temperature: of the agent; by default its server's.
    :param max_turns: most turns of the episode.
    :param max_tokens_per_episode: most tokens of the agent's context; by default 131,072.
    :param context: what becomes of a full context: stop, or compress (older results of tools are left out).
    :param runtime: where the environment runs: forked (the default), in-process, or tcp://host:port, served.
    :param in_process: the same as --runtime in-process, for a debugger.
    :param keep: the platform that is found keeps what was played, else a trajectories.jsonl here does.
    :param as_json: print the trajectory as one JSON line, and nothing else.
    """
    limits = _limits(max_turns, max_tokens_per_episode, context)
    (chosen, taskset), where = _chosen(task), _where(runtime, in_process)
    _check_player(script, agent)
    who = _Player(script, _named(agent), temperature)
    view, player, host = view_of(as_json), who.player(chosen), host_of(chosen, where)
    episode = _played(chosen, host, player, view, limits)
    return _reported(episode, host, _kept(episode, taskset, who.name, view, where) if keep else "", as_json)


@dataclass(frozen=True, slots=True)
class _Player:
    """Who plays: a script, an agent, named with its model, or else the person at the keyboard."""

    script: str
    agent: str
    temperature: float | None

    @property
    def name(self) -> str:
        """As it is kept with the episode."""
        return self.agent or ("script" if self.script else "person")

    def player(self, task: "Task") -> "ChatPlayer | None":
        """For one episode. None: the person at the keyboard."""
        if self.script:
            from upcycle.playing.script_player import script_player

            return script_player(self.script, task)
        if self.agent:
            from upcycle.external.naming import external_model

            model = external_model(self.agent, temperature=self.temperature)
            return model.player(model.server())
        return None


def _played(
    task: "Task", host: "EnvironmentHost", player: "ChatPlayer | None", view: "PlayView", limits: PlayLimits
) -> PlayedEpisode:
    """One episode, shown from its first line to its end. Without a player, the person at the keyboard."""
    view.say(f"{task.slug} of {task.environment.name}, {host.where}", "dim")
    episode = asyncio.run(play_one(task, host, player or person_at(view), view, limits))
    view.ended(episode, host.output())
    return episode


def _reported(episode: PlayedEpisode, host: "EnvironmentHost", kept: str, as_json: bool) -> int:
    """The JSON line, where one was asked for, and the exit status. kept: the name under which it is kept."""
    if as_json:
        played = {**episode.to_json(), "host": host.where, "output": host.output()}
        print_json("trajectory", {**played, "kept": kept})
    return Exit.FAILED if episode.failure is not None else Exit.OK


def _kept(
    episode: PlayedEpisode, taskset: "Taskset", agent: str, view: "PlayView", where: "ChosenRuntime"
) -> str:
    """What `upcycle trajectories show` calls the episode from now on; "" where it could not be kept."""
    from upcycle.external.keeping import keep_play

    done = asyncio.run(keep_play(episode, taskset, agent, where))
    if done.why_left:
        view.say(done.why_left, "yellow")
    if done.name:
        whose = "the platform keeps it: " if done.is_sent else ""
        view.say(f"{whose}upcycle trajectories show {shlex.quote(done.name)}", "dim")
    return done.name


async def play_one(
    task: "Task", host: "EnvironmentHost", player: "ChatPlayer", view: "PlayView", limits: PlayLimits
) -> PlayedEpisode:
    """One episode; the host ends with it. Raises what the player raises."""
    from upcycle.external.judging import Judges
    from upcycle.playing.episode import OpenEnvironment, play_episode

    judges = Judges()
    try:
        async with host.channel() as channel:
            environment = OpenEnvironment(channel, host.ended_how, judges.ask)
            return await play_episode(task, environment, player, limits, view)
    finally:
        await host.end()
        await judges.close()


def _check_player(script: str, agent: str) -> None:
    if script and agent:
        raise PlayRefused("--script and --agent both name the player", "give one of them")
    if not (script or agent or sys.stdin.isatty()):
        raise PlayRefused(
            "there is no player: standard input is no terminal",
            "give --script FILE, or --agent openai:URL#model",
        )


def _limits(max_turns: int, max_tokens_per_episode: int | None, context: str) -> PlayLimits:
    if max_turns < 1:
        raise PlayRefused(f"--max-turns is {max_turns}", "give at least 1")
    budgets = {"max_turns": max_turns, "max_tokens_per_episode": max_tokens_per_episode}
    return limits_of({**budgets, "context": context})


def _chosen(source: str) -> "tuple[Task, Taskset]":
    """The task, and the taskset that has it."""
    from upcycle.cli.tasksets import load_tasksets
    from upcycle.playing.choosing import chosen_task, split_source

    path, slug = split_source(source)
    found = list(load_tasksets(path).values())
    task = chosen_task(path, found, slug)
    return task, next(one for one in found if any(task is own for own in one))


def _where(runtime: str, in_process: bool) -> "ChosenRuntime":
    from upcycle.playing.runtime_hosts import runtime_of
    from upcycle.runtimes import LocalRuntime

    chosen = runtime_of(runtime or LocalRuntime.FORKED)
    if not in_process:
        return chosen
    if runtime and chosen != LocalRuntime.IN_PROCESS:
        raise PlayRefused(
            f"--in-process and --runtime {runtime} both say where the environment runs", "give one of them"
        )
    return LocalRuntime.IN_PROCESS


def _named(agent: str) -> str:
    """The agent with its model."""
    if not agent:
        return ""
    from upcycle.external.asking import named_agent

    return asyncio.run(named_agent(agent))


def person_at(view: "PlayView") -> "ChatPlayer":
    """The person at the keyboard."""
    from upcycle.playing.person_player import HELP, PersonPlayer

    view.say(HELP, "dim")

    def read_line() -> str:
        sys.stderr.write("> ")
        sys.stderr.flush()
        return input()

    return PersonPlayer(read_line, view.say)


def host_of(task: "Task", runtime: "ChosenRuntime | None" = None) -> "EnvironmentHost":
    """What runs the environment of a task; without a runtime it is forked, where this machine can."""
    from upcycle.cli.tasksets import naming_lines
    from upcycle.environment import load_environment
    from upcycle.playing.hosting import ForkedHost, SameProcessHost, ServedHost
    from upcycle.runtimes import LocalRuntime, Runtime

    where = task.environment
    if isinstance(runtime, Runtime):
        return ServedHost(runtime.url, where.name)
    if where.url:
        return ServedHost(where.url)
    with naming_lines():
        environment = load_environment(where.path, where.name)
    can_fork = hasattr(os, "fork") and runtime != LocalRuntime.IN_PROCESS
    return ForkedHost(environment) if can_fork else SameProcessHost(environment)


def view_of(as_json: bool) -> "PlayView":
    """Where a person reads the episode."""
    from rich.console import Console

    from upcycle.cli.play_view import PlayView

    if not as_json:
        return PlayView(result_console())
    return PlayView(human() if sys.stdin.isatty() else Console(quiet=True))
