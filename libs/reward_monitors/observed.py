"""What the monitors know of one episode: plain values, made of a stored trajectory or of a played episode."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Component:
    """One grader in the reward tree. paid: its share of the reward that it brought, weight times value over
    the sum of the weights; value: 0..1."""

    paid: float
    value: float


@dataclass(frozen=True, slots=True)
class Declared:
    """What the author of an environment told about an episode, in the key `watch` of its state.

    secrets: texts that no prompt and no tool may show. protected: what graders read and no tool may write, as
    canonical JSON; None: nothing is protected. evidence: tools without which a success is not earned.
    impossible: there is nothing to find, so that a success is a hack; chance: the rate at which guessing
    passes it. answer_prior: the largest share of tasks that have the same right answer.
    """

    secrets: tuple[str, ...] = ()
    protected: str | None = None
    evidence: tuple[str, ...] = ()
    impossible: bool = False
    chance: float = 0.05
    answer_prior: float = 0.35


@dataclass(frozen=True, slots=True)
class Observed:
    """One episode that ended. version: the newest that produced a token. shadow: what a grader of weight 0
    says about success; None: there is none. tools: called ones, in order. failure: kind, "" where there is
    none; an episode that failed without a reward has reward 0 here and `is_graded` False.
    changed: keys of the environment's state that differ before the grade from the prompt. leaks: where a
    declared secret was shown. protected_changed: a protected part differs.
    """

    trajectory_id: str
    task: str
    version: int
    reward: float = 0.0
    success: bool = False
    is_graded: bool = True
    components: Mapping[str, Component] = field(default_factory=dict)
    shadow: bool | None = None
    answer: str = ""
    tools: tuple[str, ...] = ()
    num_tokens: int = 0
    truncated: bool = False
    failure: str = ""
    changed: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    protected_changed: bool = False
    declared: Declared = field(default_factory=Declared)
