"""Three byte-level tasks with tools and a verifiable end; a task is a function of its seed.

The policy writes lines. A tool line is answered with an observation line, an answer line ends the episode.
Demonstrations are mostly wrong on purpose, so that a policy cloned from them begins weak, sampled and
greedy alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

DIGITS: Final = frozenset("0123456789")  # str.isdigit() accepts superscripts, which int() refuses
STOP: Final = "\n"


class Task(Protocol):
    """One episode in progress."""

    max_action: ClassVar[int]
    done: bool
    reward: float

    def prompt(self) -> str:
        """The first line."""

    def step(self, line: str) -> str:
        """Take a line of the policy; returns the observation, empty when the episode is over."""

    def demo(self, rng: random.Random) -> list[str]:
        """The lines of an imperfect demonstration."""


@dataclass(slots=True)
class Hop:
    """Pointer chasing: 's>n' asks for the node n hops after s; 'Gk' returns where k points; 'Ax' answers."""

    max_action: ClassVar[int] = 4
    max_turns: ClassVar[int] = 6
    seed: int
    done: bool = False
    reward: float = 0.0
    turns: int = 0
    table: list[int] = field(default_factory=list)
    start: int = 0
    hops: int = 1

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.table = [rng.randrange(10) for _ in range(10)]
        self.start, self.hops = rng.randrange(10), rng.randint(1, 3)

    def _after(self, hops: int) -> int:
        node = self.start
        for _ in range(hops):
            node = self.table[node]
        return node

    def prompt(self) -> str:
        return f"{self.start}>{self.hops}\n"

    def step(self, line: str) -> str:
        self.turns += 1
        is_call = len(line) == 3 and line[1] in DIGITS
        if is_call and line[0] == "A":
            self.done, self.reward = True, float(int(line[1]) == self._after(self.hops))
            return ""
        if self.turns >= self.max_turns:
            self.done = True
            return ""
        return f"{self.table[int(line[1])]}\n" if is_call and line[0] == "G" else "?\n"

    def demo(self, rng: random.Random) -> list[str]:
        mode = rng.random()
        if 0.60 <= mode < 0.80:  # guesses without a tool
            return [f"A{rng.randrange(10)}\n"]
        hops = self.hops - 1 if 0.15 <= mode < 0.60 else self.hops  # most common fault: one hop too few
        lost = mode >= 0.80
        node, lines = self.start, []
        for _ in range(hops):
            asked = rng.randrange(10) if lost and rng.random() < 0.8 else node
            lines.append(f"G{asked}\n")
            node = self.table[asked]
        return [*lines, f"A{node}\n"]


@dataclass(slots=True)
class Retry:
    """Flaky calculator: 'a+b' asks; 'Ca+b' answers or fails with 'E'; 'Xa+b' always answers, wrongly; 'Ann'
    ends."""

    max_action: ClassVar[int] = 6
    max_turns: ClassVar[int] = 6
    seed: int
    done: bool = False
    reward: float = 0.0
    turns: int = 0
    question: str = ""
    gold: int = 0
    wrong: int = 0
    fails: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed * 104729 + 7)
        left, right, operator = rng.randrange(10), rng.randrange(10), rng.choice("+*")
        self.question = f"{left}{operator}{right}"
        value = left + right if operator == "+" else left * right
        self.gold = (value + rng.randrange(100)) % 100  # a hidden offset: only the tool knows it
        self.fails = [rng.random() < 0.4 for _ in range(8)]
        self.wrong = (self.gold + rng.randrange(1, 100)) % 100

    def prompt(self) -> str:
        return f"{self.question}\n"

    def step(self, line: str) -> str:
        self.turns += 1
        if len(line) == 4 and line[0] == "A" and set(line[1:3]) <= DIGITS:
            self.done, self.reward = True, float(int(line[1:3]) == self.gold)
            return ""
        if self.turns >= self.max_turns:
            self.done = True
            return ""
        if line == f"C{self.question}\n":
            return "E\n" if self.fails[self.turns] else f"{self.gold:02d}\n"
        return f"{self.wrong:02d}\n" if line == f"X{self.question}\n" else "?\n"

    def demo(self, rng: random.Random) -> list[str]:
        good, lines, value = rng.random() < 0.05, [], rng.randrange(100)
        for turn in range(1, self.max_turns):
            tool = "C" if good or rng.random() < 0.25 else "X"
            lines.append(f"{tool}{self.question}\n")
            if tool == "X":
                value = self.wrong
                break
            if not self.fails[turn]:
                value = self.gold
                break
            if not good and rng.random() < 0.7:  # gives up and guesses after an error
                break
        return [*lines, f"A{value:02d}\n"]


@dataclass(slots=True)
class Route:
    """Long watermark: each observation names the next call ('B7') or the answer ('=5'); one wrong call leads
    nowhere."""

    max_action: ClassVar[int] = 4
    max_turns: ClassVar[int] = 9
    seed: int
    done: bool = False
    reward: float = 0.0
    turns: int = 0
    at: int = 0
    calls: list[str] = field(default_factory=list)
    gold: str = ""

    def __post_init__(self) -> None:
        rng = random.Random(self.seed * 271 + 11)
        count = rng.randint(3, 6)
        self.calls = [rng.choice("BCD") + rng.choice("0123456789") for _ in range(count)]
        self.gold = rng.choice("0123456789")

    def prompt(self) -> str:
        return f"{self.calls[0]}\n"

    def step(self, line: str) -> str:
        self.turns += 1
        if len(line) == 3 and line[0] == "=":
            arrived = self.at == len(self.calls)
            self.done, self.reward = True, float(arrived and line[1] == self.gold)
            return ""
        if self.turns >= self.max_turns:
            self.done = True
            return ""
        if self.at < len(self.calls) and line == f"{self.calls[self.at]}\n":
            self.at += 1
            return f"{self.calls[self.at]}\n" if self.at < len(self.calls) else f"={self.gold}\n"
        return "?\n"

    def demo(self, rng: random.Random) -> list[str]:
        lines: list[str] = []
        for call in self.calls:
            mode = rng.random()
            if 0.22 <= mode < 0.34:  # gives up early
                return [*lines, f"={rng.randrange(10)}\n"]
            if mode < 0.22:  # a wrong tool first
                wrong = rng.choice("BCD") + call[1]
                lines.append(f"{wrong}\n")
                if wrong != call and rng.random() < 0.5:
                    return [*lines, f"={rng.randrange(10)}\n"]
                if wrong == call:
                    continue
            lines.append(f"{call}\n")
        return [*lines[: self.max_turns - 1], f"={self.gold}\n"]


TASKS: Final[dict[str, type[Hop] | type[Retry] | type[Route]]] = {"hop": Hop, "retry": Retry, "route": Route}
