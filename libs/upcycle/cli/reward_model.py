"""`upcycle reward-model train`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from upcycle.cli.best_of import lines_of_run, points
from upcycle.cli.exits import Exit
from upcycle.cli.live_view import PolledLines
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.cli.platform_needed import require_train
from upcycle.platform import Platform
from upcycle.reporting.words import number, percent
from upcycle.wording import amount

if TYPE_CHECKING:
    from reward_models import GradedConversation
    from reward_models.training import RewardModelOptions, TrainedRewardModel

Output = Annotated[Path, Parameter(name=["--output", "-o"])]
_NEVER_TRAIN: Final = ("held_out", "audit")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags:
    """How it learns."""

    epochs: int = 3
    """passes over the episodes."""
    batch: int = 16
    """episodes of an optimizer step."""
    learning_rate: float = 1e-4
    """the highest: it rises in the first tenth of the steps and falls to 0. 1e-5 for a pretrained policy of
    usual size."""
    kept_apart: float = 0.2
    """share of the tasks that do not train, and measure what was learned."""
    max_tokens: int | None = None
    """of the longest episode that it reads; by default what the base's context holds."""
    seed: int = 0
    """of the tasks that are kept apart, of the new head, and of the order."""


_USUAL: Final = TrainingFlags()


async def train(
    *sources: Annotated[str, Parameter(name="SOURCE")],
    base: Path,
    output: Output,
    training: TrainingFlags = _USUAL,
    as_json: JsonFlag = False,
) -> int:
    """Train an outcome reward model on graded trajectories: how likely is it that an episode succeeded?

    It reads what the policy saw and wrote: prompt, tools, turns, results; never a grade. Tasks of split
    held_out and audit never train it.

    - `upcycle reward-model train last --base ./policy -o ./orm`
    - then the best of four: `upcycle eval tasks.py shop --best-of 4 --select orm:./orm`

    :param sources: runs (an id, or `last`), or trajectories files; several are taken together.
    :param base: Hugging Face folder of a policy: the reward model begins with its transformer and tokenizer.
    :param output: folder to make.
    :param as_json: one JSON line.
    """
    require_train("reward-model train")
    from reward_models.training import RewardModelOptions

    return await _train(sources, base, output, RewardModelOptions(**asdict(training)), as_json)


async def _train(
    sources: tuple[str, ...], base: Path, output: Path, options: "RewardModelOptions", as_json: bool
) -> int:
    from reward_models import RewardModelRefused
    from reward_models.training import save_reward_model

    if not sources:
        raise RewardModelRefused("there is nothing to learn from", "name a run or a trajectories file")
    if output.exists():
        raise RewardModelRefused(f"-o {output} is there already", "name a new folder")
    read = await _read(sources)
    trained = _trained(base, read, options)
    if trained.unread:
        read.left_out[f"that it cannot read ({trained.unread[0]})"] = len(trained.unread)
    save_reward_model(trained.model, base, output)
    if as_json:
        print_json("reward_model", _fields(trained, read, output))
    else:
        for line in _lines(trained, read, output):
            print(line)
    return Exit.OK


@dataclass(slots=True)
class GradedEpisodes:
    """What was read. left_out: how many episodes, by reason."""

    episodes: "list[GradedConversation]" = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, line: Mapping[str, Any], name: str) -> None:
        """One line of a trajectories file. Raises RewardModelRefused."""
        from reward_models import GradedConversation, conversation_of

        task = line["task"]
        split = str(task.get("split") or _mapping(line.get("planned")).get("split") or "")
        reason = _why_left_out(line, split)
        if reason:
            self.left_out[reason] += 1
            return
        digest = str(task.get("digest") or task.get("slug") or "")
        self.episodes.append(GradedConversation(conversation_of(line, name), digest, bool(line["success"])))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _why_left_out(line: Mapping[str, Any], split: str) -> str:
    if split in _NEVER_TRAIN:
        return f"of {split.replace('_', '-')} tasks"
    if line.get("reward") is None or line.get("success") is None:
        return "without a grade"
    return "guided: their prompt had help" if line.get("guided_after") else ""


async def _read(sources: tuple[str, ...]) -> GradedEpisodes:
    """All of them together. Raises RewardModelRefused where nothing is left, or a task is held out."""
    from reward_models import RewardModelRefused
    from upcycle.reporting.trajectory_files import TrajectoryLines, file_of

    read = GradedEpisodes()
    for source in sources:
        if (path := file_of(source)) is None:
            await _add_run(read, source)
            continue
        lines = TrajectoryLines(path)
        for number_, line in lines.rows():
            read.add(line, f"{path.name}:{number_}")
        if lines.notice:
            human().print(lines.notice, markup=False, soft_wrap=True)
    if not read.episodes:
        why = _left_out_words(read) or "there is none"
        raise RewardModelRefused(
            f"{', '.join(sources):.200} has no episode to learn from: {why}",
            "name a run over tasks of split train",
        )
    return read


async def _add_run(read: GradedEpisodes, run: str) -> None:
    """And make its tasks training data: one that is held out by now refuses."""
    from reward_models import RewardModelRefused
    from upcycle.cli.runs import check_run, resolve_run
    from upcycle.cli.sft import SftRefused, claim

    async with Platform() as platform:
        run_id = await resolve_run(platform, run)
        await check_run(platform, run_id)
        begin = len(read.episodes)
        async for line in lines_of_run(platform, run_id):
            read.add(line, line["trajectory_id"])
        tasks = {one.conversation.name: one.task for one in read.episodes[begin:]}
        try:
            await claim(platform, tasks, f"reward model of {run_id}")
        except SftRefused as error:
            raise RewardModelRefused(str(error)) from error


def _trained(base: Path, read: GradedEpisodes, options: "RewardModelOptions") -> "TrainedRewardModel":
    from reward_models.training import train_reward_model

    lines = PolledLines(human())

    def say(step: int, of: int, loss: float) -> None:
        lines.show(f"step {step}/{of}, loss {loss:.4f}")

    try:
        return train_reward_model(base, read.episodes, options, on_step=say)
    finally:
        lines.close()


def _left_out_words(read: GradedEpisodes) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in read.left_out.items())


def _fields(trained: "TrainedRewardModel", read: GradedEpisodes, output: Path) -> dict[str, Any]:
    return {
        "folder": str(output),
        "base": trained.model.facts.base,
        "max_tokens": trained.model.facts.max_tokens,
        "tasks": trained.num_tasks,
        "episodes": trained.num_episodes,
        "steps": trained.num_steps,
        "loss": trained.loss,
        "left_out": dict(read.left_out),
        "kept_apart": asdict(trained.measured),
    }


def _lines(trained: "TrainedRewardModel", read: GradedEpisodes, output: Path) -> Iterator[str]:
    from upcycle.cli.report_text import table

    found, calibration = trained.measured, trained.measured.calibration
    of = f"{amount(trained.num_episodes, 'episode')} of {amount(trained.num_tasks, 'task')}"
    yield f"{output}: {of}, {amount(trained.num_steps, 'step')}, loss {trained.loss:.4f}"
    if read.left_out:
        yield f"left out: {_left_out_words(read)}"
    apart = f"{amount(found.num_episodes, 'episode')} of {amount(found.num_tasks, 'task')}"
    yield f"on {apart} that were kept apart (95 % intervals, clustered by task):"
    ranks = f"AUC {number(found.auc)}, within tasks {number(found.within)}"
    yield f"  {ranks}; {found.success_rate:.1%} succeeded"
    yield (
        f"  mean score minus success {points(calibration.bias)}; Brier score {number(calibration.brier)}, "
        f"where the rate alone has {calibration.brier_of_rate:.3f}"
    )
    rows = [["  score", "succeeded", "episodes"]]
    for one in calibration.bins:
        rows.append([f"  {one.predicted:.1%}", percent(one.observed), str(one.num_episodes)])
    yield from table(rows)
