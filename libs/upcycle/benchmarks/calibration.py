"""What the scripted players of a benchmark earn, each task played in this process."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from upcycle import Environment, EvaluationResult, Scenario
from upcycle.transcripts import Answer, Transcript, Turn


class ScriptedPlayer(Protocol):
    """A player of a stated skill."""

    @property
    def name(self) -> str: ...

    @property
    def skill(self) -> str: ...


Calls = Iterable[tuple[str, Mapping[str, Any]]]
P = TypeVar("P", bound=ScriptedPlayer)


@dataclass(frozen=True, slots=True)
class Calibration(Generic[P]):
    """One benchmark and its players. calls_of: the calls of tools of a player in the task of a number;
    family_of: the family of that task."""

    benchmark: str
    anchor: str
    env: Environment
    scenario: Scenario
    players: Sequence[P]
    num_tasks: int
    calls_of: Callable[[P, int], Calls]
    family_of: Callable[[int], str]

    async def played(self, number: int, calls: Calls) -> EvaluationResult:
        """The reward of calls of tools in one task."""
        play = self.scenario.play({"number": number})
        try:
            await play.start()
            for name, arguments in calls:
                await self.env.call_tool(name, arguments)
            return await play.grade(Answer("", Transcript((Turn(""),))))
        finally:
            await play.close()

    def rewards(self, player: P, numbers: Iterable[int]) -> dict[str, float]:
        """The reward of each task, by its number."""
        found = {
            number: asyncio.run(self.played(number, self.calls_of(player, number))) for number in numbers
        }
        return {str(number): round(result.score, 4) for number, result in found.items()}

    def table(self) -> dict[str, Any]:
        """Every player on every task. people: how many of the players are people."""
        rows = [self._row(player) for player in self.players]
        return {"benchmark": self.benchmark, "anchor": self.anchor, "people": 0, "players": rows}

    def _row(self, player: P) -> dict[str, Any]:
        earned = self.rewards(player, range(self.num_tasks))
        families: dict[str, list[float]] = {}
        for number, reward in earned.items():
            families.setdefault(self.family_of(int(number)), []).append(reward)
        return {
            "player": player.name,
            "skill": player.skill,
            "reward": _mean(list(earned.values())),
            "success": _mean([float(reward == 1) for reward in earned.values()]),
            "families": {name: _mean(values) for name, values in families.items()},
            "rewards": earned,
        }


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 4)
