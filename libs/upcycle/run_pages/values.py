"""Everything that a page of a run shows, as plain values. What episodes wrote is in them as it was written:
the templates make it harmless."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.report import EvaluationReport


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting whose value is not its default."""

    name: str
    value: str
    default: str


@dataclass(frozen=True, slots=True)
class Header:
    """What was run. kind: `evaluation`, `training run`; facts: name and text, in the order of the page;
    warnings: sentences that a reader must not miss."""

    run_id: str
    kind: str
    state: str
    facts: tuple[tuple[str, str], ...] = ()
    settings: tuple[ShownSetting, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """Of the prompt."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A tool call with its result; None: it has none. seconds: None where they are not known."""

    name: str
    arguments: str
    result: str | None = None
    is_error: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A sampled token with the log-probability that the policy gave it."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One completion. words: versions, number of tokens, how it ended, for its heading. reasoning: what it
    began with, apart from its text."""

    text: str
    calls: tuple[ShownCall, ...] = ()
    words: tuple[str, ...] = ()
    parse_error: str = ""
    tokens: tuple[ShownToken, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ShownGrade:
    """A node of the reward tree. depth: 0 at its top."""

    depth: int
    name: str
    value: float
    weight: float
    info: str = ""


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """An episode that the page shows whole. why: it was chosen: worst, best, sample. words: for its heading.
    states: of its environment, a text each.
    detail: of a failure, with the traceback and what the episode printed. notice: why there is no more."""

    row: EpisodeRow
    why: str
    words: tuple[str, ...] = ()
    prompt: tuple[Message, ...] = ()
    turns: tuple[ShownTurn, ...] = ()
    answer: str = ""
    grades: tuple[ShownGrade, ...] = ()
    detail: str = ""
    notice: str = ""
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Of a training run. values: what was measured, by its name; staleness: mean age of its trajectories in
    versions."""

    step: int
    version: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    staleness: float | None = None


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Of the gate on a checkpoint. lower_bound: one-sided, of the gain in success on held-out tasks."""

    checkpoint_id: str
    step: int
    version: int
    is_promoted: bool
    reason: str
    candidate_rate: float | None = None
    head_rate: float | None = None
    lower_bound: float | None = None
    confidence: float | None = None
    num_tasks: int | None = None

    @property
    def gain(self) -> float | None:
        """Of success, candidate minus head."""
        if self.candidate_rate is None or self.head_rate is None:
            return None
        return self.candidate_rate - self.head_rate


@dataclass(frozen=True, slots=True)
class RunPage:
    """A run on one page. episodes: all that are known, of which `shown` are shown whole; report: None where
    there is none to show, and a warning of the header says why. group: attempts at each task. is_whole: the
    episodes are all that were planned."""

    header: Header
    episodes: tuple[EpisodeRow, ...]
    shown: tuple[ShownEpisode, ...] = ()
    report: EvaluationReport | None = None
    group: int = 1
    steps: tuple[Step, ...] = ()
    verdicts: tuple[GateVerdict, ...] = ()
    notices: tuple[str, ...] = ()
    is_whole: bool = True
