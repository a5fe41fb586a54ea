"""One episode of a trajectories file as text: as `upcycle trajectories show` writes one of the platform."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from upcycle.cli.terminal_text import terminal_text
from upcycle.errors import UnknownName
from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.external_rows import episode_row_of
from upcycle.reporting.trajectory_files import TrajectoryLines
from upcycle.run_pages.values import ShownEpisode, ShownGrade, ShownTurn
from upcycle.viewing.line_episodes import shown_line


def episode_in(path: Path, name: str) -> tuple[ShownEpisode, Mapping[str, Any]]:
    """An episode by its id, its trajectory's id, or `last`, and its line.

    Raises UnknownName, with the nearest ids, and NoTrajectories.
    """
    lines, ids = TrajectoryLines(path), list[str]()
    found: tuple[int, EpisodeRow, Mapping[str, Any]] | None = None
    for number, line in lines.rows():
        with lines.refusing(number):
            row = episode_row_of(line, f"line {number}")
        ids.append(row.episode_id)
        if name in ("last", row.episode_id, line.get("trajectory_id")):
            found = (number, row, line)
    if found is None:
        near = get_close_matches(name, ids, n=3) or ids[:3]
        raise UnknownName(f"{path} holds no episode {name!r:.200}", f"it has {', '.join(near) or 'none'}")
    number, row, line = found
    with lines.refusing(number):
        return shown_line(row, "", line), line


def render_line(shown: ShownEpisode, line: Mapping[str, Any]) -> RenderableType:
    """The whole of it, one panel per turn."""
    parts: list[RenderableType] = [_heading(shown, line)]
    parts += [_text(f"{message.role}: {message.text}", "dim") for message in shown.prompt]
    parts += [_turn(number, turn) for number, turn in enumerate(shown.turns, start=1)]
    parts += [_text(state, "magenta") for state in shown.states]
    parts.append(_reward(shown))
    if shown.detail:
        parts.append(_text(shown.detail, "red"))
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    return Text(terminal_text(text, max_chars=len(text)), style=style)


def _heading(shown: ShownEpisode, line: Mapping[str, Any]) -> Text:
    text = _text(shown.row.episode_id, "bold")
    what = (shown.row.task_slug, str(line.get("agent") or "agent not named"), *shown.words)
    text.append(f"\n{terminal_text(' · '.join(what))}", style="not bold")
    return text


def _turn(number: int, turn: ShownTurn) -> Panel:
    return Panel(Group(*_parts(turn)), title=f"turn {number}", title_align="left", border_style="dim")


def _parts(turn: ShownTurn) -> Iterator[Text]:
    if turn.reasoning:
        yield _text(f"reasoning: {turn.reasoning}", "dim")
    if turn.text:
        yield _text(turn.text)
    for call in turn.calls:
        yield _text(f"→ {call.name}({call.arguments})", "cyan")
        if call.result is not None:
            yield _text(f"← {call.result}", "red" if call.is_error else "blue")
    if turn.parse_error:
        yield _text(f"unreadable: {turn.parse_error}", "red")


def _reward(shown: ShownEpisode) -> RenderableType:
    row = shown.row
    if row.reward is None:
        return _text(f"no reward: {row.failure}", "yellow")
    verdict, style = ("success", "green") if row.success else ("no success", "red")
    tree = Tree(Text(f"reward {row.reward:.3f} ", style="bold").append(verdict, style))
    _add(tree, shown.grades)
    if row.policy_failure:
        tree.add(_text(row.policy_failure, "red"))
    return tree


def _add(tree: Tree, grades: Sequence[ShownGrade]) -> None:
    """grades: from the top, each followed by what is below it."""
    branches = [tree]
    for grade in grades:
        del branches[grade.depth + 1 :]
        label = f"{grade.name} {grade.value:.3f} × {grade.weight:g}  {grade.info}".rstrip()
        branches.append(branches[-1].add(_text(label)))
