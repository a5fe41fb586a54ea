"""`upcycle eval --agent "cmd: …"`: what is refused, and what is said of the sessions."""

from typing import TYPE_CHECKING, Any

from upcycle.cli.output import human
from upcycle.external.command_agent import CommandModel, RecordedEpisodes, command_model
from upcycle.playing.errors import PlayRefused
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.tasks import Taskset


async def agent_of_command(
    agent: str, slug: str, taskset: "Taskset", sampling: dict[str, Any], gateway: bool
) -> CommandModel:
    """Who plays. Raises PlayRefused for flags of models that are asked from here."""
    given = [name for name, value in sampling.items() if value is not None]
    if given:
        flag = f"--{given[0].replace('_', '-')}"
        raise PlayRefused(f"{flag} is for models that are asked turn by turn", "an agent samples as it likes")
    if gateway:
        raise PlayRefused("--gateway is for models", "leave it out: a command asks the gateway anyway")
    return await command_model(agent, slug, split=str(taskset.split or ""))


def say_recorded(recorded: RecordedEpisodes) -> None:
    """What the platform has of the episodes."""
    if recorded.graded:
        kept = amount(len(recorded.graded), "episode", "episodes")
        print(f"recorded as sessions: {kept}: upcycle trajectories list --run {recorded.run_id}")
    for why, number in recorded.left.items():
        human().print(
            f"no reward for {amount(number, 'session')}: {why}", style="yellow", markup=False, soft_wrap=True
        )


def recorded_json(recorded: RecordedEpisodes) -> dict[str, Any]:
    """For `--json`."""
    return {"sessions": {"graded": recorded.graded, "run_id": recorded.run_id, "left": dict(recorded.left)}}
