"""The live view of the loop: a dashboard on a terminal, one line per event elsewhere."""

from statistics import fmean
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from local_demo.feed import LoopState

REFRESH_PER_S = 4
BAR_CHARS = 30


class View(Protocol):
    """Where the demo shows itself."""

    def start(self) -> None: ...
    def phase(self, title: str) -> None: ...
    def event(self, line: str | None) -> None: ...
    def stop(self) -> None: ...


def make_view(state: LoopState, console: Console) -> View:
    """A dashboard when a person watches, lines otherwise."""
    return Dashboard(state, console) if console.is_terminal else Lines(console)


class Lines:
    """One line per event; what CI logs show."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self) -> None:
        """Nothing to set up."""

    def phase(self, title: str) -> None:
        """A new part of the demo begins."""
        self._console.print(f"── {title}")

    def event(self, line: str | None) -> None:
        """Show what happened, if it is worth a line."""
        if line is not None:
            self._console.print(f"   {line}", soft_wrap=True, markup=False)

    def stop(self) -> None:
        """Nothing to tear down."""


class Dashboard:
    """Redrawn four times a second from the state; the last frame stays on the screen."""

    def __init__(self, state: LoopState, console: Console) -> None:
        self._state = state
        self._title = "starting"
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=REFRESH_PER_S)

    def start(self) -> None:
        """Take the screen's lower part."""
        self._live.start()

    def phase(self, title: str) -> None:
        """A new part of the demo begins."""
        self._title = title
        self._state.log.append(f"── {title}")

    def event(self, line: str | None) -> None:
        """The state already holds it; the next frame shows it."""

    def stop(self) -> None:
        """Leave the last frame."""
        self._live.stop()

    def _render(self) -> Panel:
        body = Group(_numbers(self._state), Text("\n".join(self._state.log), style="dim"))
        return Panel(body, title=f"[bold]upcycle[/bold] · {self._title}", title_align="left")


def _numbers(state: LoopState) -> Table:
    table = Table.grid(padding=(0, 2))
    episodes = state.episodes
    shown = ("requested", "sampled", "graded", "trained", "evaluated", "failed")
    table.add_row("episodes", "  ".join(f"{name} {episodes[name]}" for name in shown))
    table.add_row(
        "excluded",
        "  ".join(f"{k[9:-1]} {n}" for k, n in sorted(episodes.items()) if k.startswith("excluded")),
    )
    table.add_row(
        "training", f"step {state.step}/{state.target_steps or '?'}  latest v{state.latest_version}"
    )
    fed = "  ".join(f"{run_id} {groups}" for run_id, groups in sorted(state.groups_from.items()))
    table.add_row("evaluations", f"groups trained: {fed or 0}")
    table.add_row("reward", f"{_bar(fmean(state.recent_rewards or [0.0]))}  success {_bar(_rate(state))}")
    table.add_row("staleness", "  ".join(f"{lag}: {count}" for lag, count in sorted(state.staleness.items())))
    held_out = " → ".join(f"v{version} {rate:.0%}" for version, rate in state.held_out[-6:])
    table.add_row("held-out", f"{held_out}   [bold green]head v{state.head_version}[/bold green]")
    counts = state.checkpoints
    table.add_row(
        "checkpoints", f"saved {counts['saved']}  promoted {counts['promoted']}  held {counts['held']}"
    )
    return table


def _rate(state: LoopState) -> float:
    return fmean(map(float, state.recent_successes)) if state.recent_successes else 0.0


def _bar(share: float) -> str:
    filled = round(min(max(share, 0.0), 1.0) * BAR_CHARS)
    return f"[green]{'━' * filled}[/green][dim]{'━' * (BAR_CHARS - filled)}[/dim] {share:.2f}"
