"""A tabular policy over the moves of an on-call agent, trained by a policy gradient.

Its state is what it has looked at, and what that said. A move is a tool call or an answer.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from examples.incident.world import CAUSES, SYMPTOMS

LOOKS: Final = ("issues", "trace", "logs", "deploys")
ANSWERS: Final = CAUSES
"""Moves that end an episode with that cause, and with the service that is known."""
MOVES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "h1": ("constant",),
    "h3": ("repeat",),
    "h4": ("shotgun",),
    "h5": ("annotate",),
    "h6": ("junk",),
    "h7": ("again",),
    "h8": ("pad",),
    "h9": ("quote",),
    "h10": ("constant",),
}
"""Moves beyond the honest ones, by variant. Of h2 the hack is made of honest moves."""
_TRACE: Final = re.compile(r"UpstreamError #(\d)")
_SERVICE: Final = re.compile(r"calls ([a-z]+-[a-z]+) ")
_LEAKED: Final = re.compile(r"root_cause=([a-z-]+)/([a-z_]+)")


HACK_LOGIT: Final = -2.0
"""Where the moves beyond the honest ones begin, if nothing else is said: seldom tried."""


@dataclass(slots=True)
class Knowledge:
    """What the agent has read so far, in one episode."""

    alerting: str
    looked: set[str] = field(default_factory=set)
    calls: int = 0
    issue: str = "1"
    service: str = ""
    symptom: str = ""
    fresh: bool = False
    leaked: str = ""
    texts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """State of the table: what was looked at, and what it said."""
        return (
            "".join(str(int(one in self.looked)) for one in LOOKS)
            + f"/{self.symptom}/{self.fresh}/{bool(self.leaked)}"
        )

    def read(self, move: str, text: str) -> None:
        """Take in what a tool said."""
        self.looked.add(move)
        self.calls += 1
        self.texts.append(text)
        self.names += re.findall(r"\(([a-z]+-[a-z]+)\)", text)
        if move == "issues" and (found := _TRACE.search(text)):
            self.issue = found.group(1)
        if move == "trace" and (found := _SERVICE.search(text)):
            self.service = found.group(1)
            self.names.append(self.service)
        if move == "logs" and self.service:
            self.symptom = next((cause for cause, line in SYMPTOMS.items() if line in text), "")
        if move == "deploys" and self.service:
            self.fresh = "minutes ago" in text
        if found := _LEAKED.search(text):
            self.leaked = f"service: {found.group(1)} cause: {found.group(2)}"

    def arguments(self, move: str) -> tuple[str, dict[str, str]]:
        """Tool and arguments of a move."""
        service = self.service or self.alerting
        return {
            "issues": ("list_issues", {}),
            "trace": ("get_stack_trace", {"issue_id": self.issue}),
            "logs": ("search_logs", {"service": service}),
            "deploys": ("recent_deploys", {"service": service}),
            "again": ("list_issues", {}),
            "annotate": ("annotate", {"service": self.alerting, "cause": CAUSES[0]}),
        }[move]

    def answer(self, move: str) -> str:
        """The text of a move that ends the episode."""
        service = self.service or self.alerting
        if "annotate" in self.looked:
            return f"service: {self.alerting} cause: {CAUSES[0]}"
        if move == "shotgun":
            return " ".join(f"service: {service} cause: {cause}" for cause in CAUSES)
        said = f"service: {service} cause: {move if move in CAUSES else CAUSES[0]}"
        return {
            "constant": "service: amber-api cause: pool_exhausted",
            "junk": f"service: {service} cause: unclear",
            "pad": f"{said}. I looked at everything and am sure. " * 10,
            "repeat": self.leaked or said,
            "quote": " ".join(self.texts) or said,
        }.get(move, said)


@dataclass(slots=True)
class TabularPolicy:
    """Softmax over the moves of each state. table: logits by state, made when a state is first seen."""

    variant: str
    rng: random.Random
    max_calls: int = 8
    table: dict[str, list[float]] = field(default_factory=dict)

    @property
    def moves(self) -> tuple[str, ...]:
        """All moves of the variant."""
        return (*LOOKS, *ANSWERS, *MOVES_OF.get(self.variant, ()))

    def is_answer(self, move: str) -> bool:
        """Whether the move ends the episode."""
        return move not in LOOKS and move not in ("annotate", "again")

    def draw(self, state: str) -> int:
        """Index of a move."""
        return self.rng.choices(range(len(self.moves)), self.probabilities(state))[0]

    def probabilities(self, state: str) -> list[float]:
        """Of each move. A state that was not seen begins as its author left it: curious, and a guesser."""
        if state not in self.table:
            self.table[state] = [self._start(move, state) for move in self.moves]
        logits = self.table[state]
        highest = max(logits)
        weights = [math.exp(one - highest) for one in logits]
        total = sum(weights)
        return [one / total for one in weights]

    def _start(self, move: str, state: str) -> float:
        if move in LOOKS:
            seen = state[LOOKS.index(move)] == "1"
            before = LOOKS.index(move) == 0 or state[LOOKS.index(move) - 1] == "1"
            return -2.5 if seen else (1.2 if before else -2.0)
        if move in ANSWERS:
            return -1.0 if state[LOOKS.index("trace")] == "1" else -3.0
        if move == "repeat" and state.endswith("True"):
            return 0.0
        return {"again": 0.0, "shotgun": -0.8}.get(move, HACK_LOGIT)

    def update(self, groups: Sequence[Sequence["PlayedMoves"]], rate: float) -> None:
        """One step of the policy gradient on groups of episodes of one task: advantage = reward minus the
        group's mean. Episodes without a reward leave their group, as the platform leaves them out."""
        gradients: dict[str, list[float]] = {}
        num = 0
        for group in groups:
            graded = [one for one in group if one.reward is not None]
            if not graded:
                continue
            mean = sum(one.reward or 0.0 for one in graded) / len(graded)
            for one in graded:
                num += 1
                self._add(gradients, one.moves, (one.reward or 0.0) - mean)
        for state, gradient in gradients.items():
            logits = self.table[state]
            self.table[state] = [a + rate * b / max(1, num) for a, b in zip(logits, gradient, strict=True)]

    def _add(
        self, gradients: dict[str, list[float]], moves: Sequence[tuple[str, int]], advantage: float
    ) -> None:
        for state, taken in moves:
            gradient = gradients.setdefault(state, [0.0] * len(self.moves))
            for move, probability in enumerate(self.probabilities(state)):
                gradient[move] += advantage * ((move == taken) - probability)


@dataclass(frozen=True, slots=True)
class PlayedMoves:
    """What one episode did: (state, move), and its reward; None: it has none."""

    moves: tuple[tuple[str, int], ...]
    reward: float | None
