"""`upcycle size`."""

from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from upcycle.cli import sizing
from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json, result_console

Positive = Annotated[float, Parameter(validator=Number(gt=0))]
NotNegative = Annotated[float, Parameter(validator=Number(gte=0))]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
CountOrNone = Annotated[int, Parameter(validator=Number(gte=0))]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """The model; the defaults are the shape of Qwen3-0.6B."""

    parameters: Positive = 0.6e9
    """of the model."""
    trained: NotNegative = 0.0
    """parameters that are trained; 0: all."""
    layers: Count = 28
    """of the model."""
    hidden: Count = 1024
    """width of the model."""
    kv_heads: Count = 8
    """heads of keys and values."""
    head_dim: Count = 128
    """width of a head."""
    dtype: sizing.Dtype = "bfloat16"
    """of the weights in engines; trainer and published files are float32."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """One batch."""

    prompts: Count = 16
    """groups of a batch."""
    group: Count = 8
    """episodes of a group."""
    prompt_tokens: CountOrNone = 512
    """of a prompt."""
    tokens: Count = 512
    """sampled per episode."""
    episode_s: Positive = 10.0
    """seconds that an environment lives, from prompt to grade."""
    max_staleness: CountOrNone = 4
    """as in the run."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFlags:
    """Devices with their speeds, and prices per hour. Speeds default to one core, as it was measured."""

    engines: Count = 1
    """devices that sample."""
    trainers: Count = 1
    """devices that train."""
    environment_cores: Count = 1
    """cores for environments."""
    engine_gflops: Positive = sizing.MEASURED.engine_gflops
    """that one engine device reaches while it samples; for a GPU, what it reaches in practice."""
    trainer_gflops: Positive = sizing.MEASURED.trainer_gflops
    """that one trainer device reaches."""
    sequences: Count = 128
    """that one engine samples at once."""
    microbatch_tokens: Count = 8192
    """as in GRPO_TRAINER_MICROBATCH_TOKENS."""
    engine_price: NotNegative = 0.0
    """of one engine device per hour."""
    trainer_price: NotNegative = 0.0
    """of one trainer device per hour."""
    core_price: NotNegative = 0.0
    """of one core for environments per hour."""


def size(
    *,
    model: ModelFlags = ModelFlags(),
    batch: BatchFlags = BatchFlags(),
    machines: MachineFlags = MachineFlags(),
    as_json: JsonFlag = False,
) -> int:
    """How many cores, how much memory, how long, how expensive: measured figures and stated formulas.

    :param as_json: one JSON line per figure.
    """
    shape = {**asdict(model), "trained": model.trained or model.parameters}
    devices = asdict(machines)
    prices = {name: devices.pop(f"{name}_price") for name in ("engine", "trainer", "core")}
    lines = sizing.size(
        sizing.ModelShape(**shape),
        sizing.Workload(**asdict(batch)),
        sizing.Machines(**devices),
        sizing.Prices(**prices),
    )
    show(lines, as_json=as_json)
    return Exit.OK


def show(lines: list[sizing.Line], *, as_json: bool) -> None:
    """A table, or a JSON line each."""
    from rich.table import Table

    if as_json:
        for line in lines:
            print_json("size", asdict(line))
        return
    table = Table("what", "value", "unit", "", "how", box=None)
    for line in lines:
        table.add_row(line.name, _shown(line.value), line.unit, line.basis, line.how)
    result_console().print(table)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
