"""What becomes of each listing and command line that the seeds print, with `hud` replaced by `upcycle`.

One row a line. `tests/seeds/test_table.py` compares the rows with the copies of the seeds in `listings/`;
`tests/e2e/test_seed_listings.py` runs those that work on a platform. A row that starts to work fails there
until its status says so.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

LISTINGS: Final = Path(__file__).parent / "listings"
COMMANDS: Final = "commands.txt"


class Status(StrEnum):
    """What happens to a line."""

    RUNS = "runs"
    STAND_IN = "runs with a stand-in"
    REFUSED = "refused by name"
    OUT = "another program's"
    NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class Row:
    """One listing (the name of its file) or one command line. note: the stand-in, the other program, or what
    is missing. given: what a reader fills in for the words that the line leaves to him. refusal: part of what
    a refused line answers."""

    line: str
    status: Status
    note: str = ""
    given: tuple[tuple[str, str], ...] = ()
    refusal: str = ""

    def typed(self) -> str:
        """The line as a reader types it."""
        text = self.line
        for printed, meant in self.given:
            text = text.replace(printed, meant)
        return text


_DEMO: Final = "the incident's policy for the model"
_YOURS: Final = (("your-model-id", "incident"), ("your-model", "incident"))
_ARITH: Final = (("<checkpoint>", "ckpt-arith-rl-v00000000"),)
_BEHIND: Final = "a local server behind the gateway as the vendor's provider"
_SCREEN: Final = "an agent that needs a screen"
_NO_SCREEN: Final = "needs a screen, and no episode here has one; use one that calls tools: claude, openai"
_BASE: Final = "a fork of the incident's policy for arith-rl"

PYTHON: Final = (
    Row("env.txt", Status.RUNS),
    Row("scenario.txt", Status.RUNS),
    Row("evaluate.txt", Status.STAND_IN, _DEMO, _YOURS),
    Row("template.txt", Status.STAND_IN, "a function for evaluate_spreadsheet_result"),
    Row("job.txt", Status.STAND_IN, _DEMO, _YOURS),
    Row("rollout.txt", Status.STAND_IN, _DEMO),
    Row("losses.txt", Status.STAND_IN, _DEMO),
    Row(
        "train.txt",
        Status.STAND_IN,
        "the incident's policy as arith-rl, the platform as runtime; tests/e2e/test_interactive_training.py",
    ),
    Row("custom_loss.txt", Status.STAND_IN, "the incident's policy as arith-rl"),
    Row("verl_config.txt", Status.OUT, "verl's configuration"),
    Row("metrics.txt", Status.OUT, "an example of values, no program"),
)

SHELL: Final = (
    Row("curl -LsSf https://astral.sh/uv/install.sh | sh", Status.OUT, "uv"),
    Row("uv tool install upcycle --python 3.12 --with anthropic", Status.OUT, "uv"),
    Row(
        "upcycle set HUD_API_KEY=***",
        Status.REFUSED,
        "keys are asked for: upcycle set NAME",
        refusal="type `upcycle set UPCYCLE_API_KEY`, which asks for it",
    ),
    Row("upcycle init sentry-agent --preset blank", Status.RUNS),
    Row("upcycle dev env:env -w env.py", Status.RUNS),
    Row("upcycle eval tasks.py claude --gateway", Status.STAND_IN, _BEHIND),
    Row("upcycle eval tasks.py claude --gateway --full", Status.STAND_IN, _BEHIND),
    Row("upcycle eval tasks.py claude --gateway --full --remote", Status.STAND_IN, _BEHIND),
    Row("upcycle eval tasks.py openai --gateway", Status.STAND_IN, _BEHIND),
    Row("upcycle eval tasks.py operator --gateway", Status.REFUSED, _SCREEN, refusal=_NO_SCREEN),
    Row("upcycle eval tasks.py gemini --gateway", Status.STAND_IN, _BEHIND),
    Row("upcycle eval tasks.py gemini_cua --gateway", Status.REFUSED, _SCREEN, refusal=_NO_SCREEN),
    Row("upcycle eval tasks.py openai_compatible --gateway", Status.STAND_IN, _BEHIND),
    Row("upcycle eval tasks.py your-model --group-size 3", Status.STAND_IN, _DEMO, _YOURS),
    Row("upcycle deploy", Status.RUNS),
    Row("upcycle sync tasks my-taskset", Status.RUNS),
    Row("claude mcp add --transport http docs-hud https://docs.hud.ai/mcp", Status.OUT, "claude"),
    Row("upcycle eval tasks.py your-model --group 8", Status.STAND_IN, _DEMO, _YOURS),
    Row(
        "openai api fine_tuning.jobs.create --training_file trajectories.jsonl --model o4-mini-2025-04-16 "
        "--method reinforcement",
        Status.OUT,
        "openai",
    ),
    Row("pip install upcycle", Status.OUT, "pip"),
    Row("pip install verl", Status.OUT, "pip"),
    Row(
        "vllm serve <model_path> --tensor-parallel-size 4 --gpu-memory-utilization 0.85 --max-model-len 8192",
        Status.OUT,
        "vllm",
    ),
    Row(
        "torchrun --nproc-per-node=8 -m verl.trainer.main_ppo --config your_config.yaml",
        Status.OUT,
        "torchrun",
    ),
    Row(
        "upcycle eval --benchmark sheetbench-50",
        Status.STAND_IN,
        "our sheet-50; the project's upcycle.toml names the model, else the platform's only one plays",
    ),
    Row(
        "upcycle eval --benchmark sheetbench-50 --model http://your-vllm-endpoint/v1",
        Status.STAND_IN,
        "our sheet-50; a server of chat completions with one model at the URL",
    ),
    Row(
        "upcycle models fork Qwen/Qwen3.5-4B --name arith-rl",
        Status.STAND_IN,
        "a fork of the incident's policy under the name Qwen/Qwen3.5-4B",
        (("--name arith-rl", "--name arith-rl-fork"),),
    ),
    Row("upcycle models list", Status.RUNS),
    Row("pip install 'upcycle[train]'", Status.OUT, "pip"),
    Row("upcycle models checkpoints arith-rl", Status.STAND_IN, _BASE),
    Row("upcycle models head arith-rl", Status.STAND_IN, _BASE),
    Row("upcycle models head arith-rl --set <checkpoint>", Status.STAND_IN, _BASE, _ARITH),
)
# These two have a platform whose model learns: tests/e2e/test_interactive_training.py.
ELSEWHERE: Final = ("train.txt", "custom_loss.txt")

ENDPOINT: Final = "http://your-vllm-endpoint/v1"
ALONE: Final = tuple(row.line for row in SHELL if "sheetbench-50" in row.line)
"""Need no platform: tests/seeds/test_lines_alone.py."""

LASTING: Final = ("upcycle dev env:env -w env.py",)
"""Ends with Ctrl-C: tests/libs/upcycle_cli/test_dev.py."""


def commands() -> list[str]:
    """The command lines of the seeds, from our copy."""
    lines = (LISTINGS / COMMANDS).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]
