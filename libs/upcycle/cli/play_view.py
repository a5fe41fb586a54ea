"""What a person sees of an episode that is played here: prompt, tools, calls, results, the reward tree."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from upcycle.cli.terminal_text import terminal_text
from upcycle.harness import TakenTurn, ToolCall, ToolOutcome
from upcycle.images import text_of_content
from upcycle.playing.episode import EpisodeOpened, PlayedEpisode
from upcycle.reporting.state_texts import state_text
from upcycle.rewards import SubScore
from upcycle.wording import amount


class PlayView(EpisodeOpened):
    """Prints an episode as it goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._num_turns = 0

    def say(self, text: str, style: str = "") -> None:
        """One text, whatever is in it."""
        self._console.print(Text(terminal_text(text), style=style), soft_wrap=True)

    def on_opened(self, episode: PlayedEpisode) -> None:
        """Prompt and tools."""
        for message in episode.prompt:
            self.say(f"{message.get('role')}: {_content(message)}")
        for tool in episode.tools:
            self.say(f"tool {_signature(tool['function'])}", "dim")
        if episode.first_state is not None:
            self.say(state_text(episode.first_state), "magenta")

    def on_turn(self, turn: TakenTurn) -> None:
        """What the player said, and what is wrong with it."""
        self._num_turns += 1
        if turn.said.reasoning:
            self.say(f"reasoning: {turn.said.reasoning}", "dim")
        self.say(f"turn {self._num_turns}: {turn.said.text}".rstrip(), "bold")
        if turn.said.parse_error:
            self.say(f"  unreadable: {turn.said.parse_error}", "red")
        if turn.was_cut:
            self.say("  cut: its tokens were spent", "red")

    def on_outcome(self, call: ToolCall, outcome: ToolOutcome) -> None:
        """A call and what came back."""
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        self.say(f"  → {call.name}({arguments})", "cyan")
        took = f"  [{outcome.duration_s * 1e3:.0f} ms]"
        self.say(f"  ← {outcome.content}{took}", "red" if outcome.is_error else "blue")
        if outcome.state is not None:
            self.say(f"  {state_text(outcome.state)}", "magenta")

    def ended(self, episode: PlayedEpisode, output: str) -> None:
        """The reward, or why there is none, and what the environment printed."""
        if output:
            self.say(f"the environment printed:\n{output.rstrip()}", "dim")
        if episode.failure is not None:
            if episode.failure.traceback:
                self.say(episode.failure.traceback.rstrip(), "dim")
            failure = episode.failure
            self.say(f"no reward: {failure.during} failed, {failure.kind}: {failure.message}", "red")
        elif episode.result is not None and episode.ending is not None:
            turns = amount(len(episode.turns), "turn")
            self.say(f"{episode.ending.stop_reason} after {turns}, {episode.seconds:.2f} s", "dim")
            self._console.print(_reward(episode))


def _reward(episode: PlayedEpisode) -> Tree:
    result = episode.result
    assert result is not None  # noqa: S101 - of an episode that was graded
    verdict, style = ("success", "green") if result.success else ("no success", "red")
    tree = Tree(Text(f"reward {result.score:.3f} ").append(verdict, style))
    for name, value in result.info.items():
        tree.add(Text(terminal_text(f"{name}: {value}")))
    for subscore in result.subscores:
        _add(tree, subscore)
    return tree


def _add(tree: Tree, subscore: SubScore) -> None:
    info = f"  {json.dumps(dict(subscore.info), ensure_ascii=False)}" if subscore.info else ""
    text = f"{subscore.name} {subscore.value:.3f} × {subscore.weight:g}{info}"
    branch = tree.add(Text(terminal_text(text)))
    for child in subscore.children:
        _add(branch, child)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return text_of_content(content) if isinstance(content, str | list) else json.dumps(content)


def _signature(function: Mapping[str, Any]) -> str:
    properties: Mapping[str, Any] = function.get("parameters", {}).get("properties", {})
    arguments = ", ".join(f"{name}: {_type(schema)}" for name, schema in properties.items())
    summary: Sequence[str] = str(function.get("description", "")).splitlines()
    return f"{function['name']}({arguments})" + (f"  {summary[0]}" if summary else "")


def _type(schema: Any) -> str:
    return str(schema.get("type", "any")) if isinstance(schema, Mapping) else "any"
