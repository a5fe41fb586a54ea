"""`--config`, `--set` and the flags of train and eval: which overrides which, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.run_config.bad_runs import BAD_TRAININGS

from upcycle.cli.main import run as command
from upcycle.run_config import Purpose, RunConfigInvalid
from upcycle.run_config.flags import default_text, flags_of
from upcycle.run_config.reading import gather
from upcycle.toml_files import lines_of

HEAD = 'taskset = "sums"\n[policy]\nmodel = "m"\n'
FLAGS_OF_TRAIN = """
adam-beta1 0.9, adam-beta2 0.95, advantage dr_grpo, aggregation, checkpoint-every 10, context stop, cut-off-episodes train, drift-groups 1, episode-deadline-s 120, epochs, fade-at 0.8, fade-steps 10, from, gate,
gate-attempts 16, gate-by-shadow, gate-confidence 0.95, gate-critical, gate-min-gain 0, gate-regression-margin 0.05, gate-require-review 0, group 8, guidance off, guidance-max-share 0.25, kl-estimator k3, kl-placement loss, kl-success-growth 0,
label, learning-rate, lora-alpha 0, lora-rank 0, lora-targets all-linear, loss ppo, lr-schedule, lr-success-decay 0, max-grad-norm 1,
max-infra-failures 0.5, max-staleness 4, max-tokens-per-episode 2048, max-tokens-per-turn 128, max-turns 8, min-lr-fraction 0, min-spread 0, mix, new-tasks off, new-tasks-difficulty, new-tasks-max-success 0.75, new-tasks-min-success 0.05, new-tasks-retire-after 2, new-tasks-share 0.25, no-sampling,
no-step-groups 0, process-rewards, prompts 16, reward-schedule constant, sampling-seed 0,
score-failures True, seed 0, self-play, self-play-alpha 0.8, self-play-order 1, sessions, sessions-idle-s 0, single-sessions leave_out, solved-groups train, stale-after 0, steps 100, stop-on, task-sampler uniform, taskset, taskset-name, temperature 1, thinking, top-p 1, track, turn-credit episode, turn-discount 1, turn-reward-weight 1,
warmup-steps 0, weight-decay 0
"""  # noqa: E501 - a table
FLAGS_OF_EVAL = """
at-version, channel `head`; with --trainable `latest`, context stop, episode-deadline-s 120, group 1, label,
max-concurrent,
max-tokens-per-episode 2048,
max-tokens-per-turn 128, max-turns 8, seed 0, taskset, temperature 1, thinking, top-p 1, trainable
"""


@pytest.fixture(autouse=True)
def _no_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing listens anywhere, so what is not refused before it is submitted ends with another status."""
    monkeypatch.chdir(tmp_path)


def surface(purpose: Purpose) -> list[str]:
    named = {flag: default_text(path, purpose) for path, flag in flags_of(purpose).items()}
    return [f"{flag} {default}".strip() for flag, default in sorted(named.items())]


def test_flags_and_defaults_change_only_on_purpose() -> None:
    assert surface(Purpose.TRAIN) == [one.strip() for one in FLAGS_OF_TRAIN.replace("\n", " ").split(",")]
    assert surface(Purpose.EVAL) == [one.strip() for one in FLAGS_OF_EVAL.replace("\n", " ").split(",")]


def run_of(tmp_path: Path, text: str, sets: list[str], flags: dict[str, Any]) -> Any:
    path = tmp_path / "run.toml"
    path.write_text(HEAD + text)
    names = {key: f"--{flag}" for key, flag in flags_of(Purpose.TRAIN).items()}
    return gather(flags, sets, path, names=names).run(Purpose.TRAIN, {})


def test_a_flag_goes_before_set_which_goes_before_the_file(tmp_path: Path) -> None:
    text = "[training]\nsteps = 1\nprompts_per_step = 1\nlearning_rate = 1e-4\n"
    run = run_of(
        tmp_path, text, ["training.steps=2", "training.loss_config.clip_low=0.1"], {"training.steps": 2}
    )
    assert (run.training.steps, run.training.prompts_per_step, run.training.max_staleness) == (2, 1, 4)
    assert run.training.loss_config == {"clip_low": 0.1}
    run = run_of(tmp_path, text, ["training.steps=2"], {"training.prompts_per_step": 3, "label": "5"})
    assert (run.training.steps, run.training.prompts_per_step, run.training.learning_rate) == (2, 3, 1e-4)


def test_set_takes_the_type_of_its_field(tmp_path: Path) -> None:
    sets = ["label=5", "source_runs=run-a,run-b", "no_sampling=true", "training.lr_schedule=cosine"]
    run = run_of(tmp_path, "", sets, {})
    assert (run.label, run.source_runs, run.no_sampling) == ("5", ("run-a", "run-b"), True)
    assert run.training.lr_schedule == "cosine"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("[training]\nstepz = 3\n", "", "stepz (run.toml:5): unknown key 'stepz'; did you mean 'steps'?"),
        (
            "[traning]\nsteps = 3\n",
            "",
            "traning (run.toml:4): unknown key 'traning'; did you mean 'training'",
        ),
        ('[training]\nsteps = "3"\n', "", "training.steps (run.toml:5) = '3' is not a whole number"),
        ("[training]\nlearning_rate = 99\n", "", "training.learning_rate (run.toml:5) must be > 0 and <= 10"),
        ("[training]\nsteps = 3\n", "--epochs 2", "(run.toml:5) (3) and --epochs (2) both say"),
        ("", "--steps 3 --set training.steps=4", "--set training.steps is 4, and --steps is 3: give one"),
        ("", "--set training.steps=3 --set training.steps=4", "give one"),
        ("", "--set steps=3", "--set steps: unknown key 'steps'; did you mean 'training.steps'?"),
        ("", "--set steps", "is not KEY=VALUE"),
        ("", "--loss pppo", "--loss 'pppo' does not exist; did you mean 'ppo'?"),
        ("", "--gate-attempts 3", "--gate is not set"),
        ("[training\n", "", "run.toml:4 is not TOML"),
        ('purpose = "eval"\n', "", "unknown key 'purpose'"),
    ],
)
def test_bad_input_ends_with_2_and_names_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, options: str, said: str
) -> None:
    (tmp_path / "run.toml").write_text(HEAD + text)
    assert command(["train", "--config", "run.toml", *options.split()]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


HUGE, HEXADECIMAL, DEEP = "1" + "0" * 400, "0x" + "f" * 5000, "[" * 3000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", HUGE], "--steps must be >= 0 and <= 1e+09, got 100000"),
        (["--set", f"training.seed={HEXADECIMAL}"], "--set training.seed must be >= -4.611686e+18"),
        (["--set", f"training.steps={HEXADECIMAL}", "--epochs", "2"], "both say how long"),
        (["--set", f"training.steps=1{'0' * 5000}"], "--set training.steps = '100000"),
        (["--set", f"training.steps={DEEP}"], "--set training.steps = '[[[[["),
        (["--set", f"training.steps{'.a' * 3000}=1"], "--set training.steps = "),
        (["--label", "\udcff"], "--label = '\\udcff' is not text in UTF-8"),
        (["--gate", "\udcff"], "--gate = '\\udcff' is not text in UTF-8"),
        (["--from", "\udcff"], "--from = '\\udcff' is not text in UTF-8"),
        (["--set", "policy.model=\udcff"], "--set policy.model = '\\udcff' is not text in UTF-8"),
    ],
    ids=lambda value: str(value).encode("ascii", "backslashreplace").decode()[:40],
)
def test_a_value_that_python_cannot_write_out_or_encode_ends_with_2_and_names_its_place(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    model = [] if "policy.model" in options[1] else ["m"]
    assert command(["train", *model, "--taskset", "t", *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("value", ["1" + "0" * 5000, DEEP])
def test_a_file_with_a_value_that_toml_cannot_read_ends_with_2_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    (tmp_path / "run.toml").write_text(f"{HEAD}[training]\nsteps = {value}\n")
    assert command(["train", "--config", "run.toml"]) == 2
    assert "run.toml cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", ["--steps=7", "--set", "training={steps=3}"], "training.steps is 3, and --steps is 7: give one"),
        ("", ["--set", "training={steps=3}", "--set", "training.steps=7"], "is 7: give one"),
        (
            '"training.steps" = 3\n[training]\nsteps = 5\n',
            [],
            "training.steps (run.toml:2): 'training.steps' is one key with dots: leave its quotes out",
        ),
        ("", ["--set", "training={'loss_config.clip_low'=1}"], "--set training.loss_config.clip_low: 'loss_"),
        (
            "",
            ["--set", "training.steps=3\nfoo=4"],
            "--set training.steps sets foo too: give each its own --set",
        ),
    ],
)
def test_two_values_for_one_field_are_refused_however_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, options: list[str], said: str
) -> None:
    head = 'taskset = "sums"\n'  # keys of the document stand before its first table
    (tmp_path / "run.toml").write_text(head + text)
    assert command(["train", "m", "--config", "run.toml", *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_table_of_set_goes_before_the_file_key_by_key(tmp_path: Path) -> None:
    text = "[training]\nsteps = 1\nseed = 5\n[training.loss_config]\nclip_low = 0.1\nclip_high = 0.3\n"
    run = run_of(tmp_path, text, ["training={steps=3, loss_config={clip_high=0.4}}"], {"training.seed": 6})
    assert (run.training.steps, run.training.seed) == (3, 6)
    assert run.training.loss_config == {"clip_low": 0.1, "clip_high": 0.4}


def test_a_file_that_is_missing_or_not_text_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["eval", "--config", "absent.toml"]) == 2
    assert "absent.toml: no such file" in capsys.readouterr().err
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    assert command(["eval", "--config", "run.toml"]) == 2
    assert "run.toml cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(("config", "said"), BAD_TRAININGS)
def test_the_command_line_refuses_what_planner_and_trainer_refuse(config: dict[str, Any], said: str) -> None:
    flags = {"taskset": "t", "policy.model": "m"}
    flags |= {name if name == "group_size" else f"training.{name}": value for name, value in config.items()}
    with pytest.raises(RunConfigInvalid) as refused:
        gather(flags, names={path: path for path in flags}).run(Purpose.TRAIN, {})
    assert said.replace("spec.", "") in str(refused.value)


def test_lines_are_found_in_tables_dotted_keys_and_inline_tables() -> None:
    text = '# x = 1\na.b = 1\n[t]\n"c" = 2\n[t.u]\nd = { e = 3 }\n[[l]]\nf = 4\n'
    assert lines_of(text) == {"a.b": 2, "t": 3, "t.c": 4, "t.u": 5, "t.u.d": 6, "l": 7, "l.f": 8}


def test_the_demos_run_can_be_typed_as_one_line() -> None:
    demo = Path(__file__).parents[4] / "examples/incident/demo.toml"
    run = gather({}, (), demo, names={}).run(Purpose.TRAIN, {})
    assert Path(run.taskset).samefile(demo.parent / "tasks.py")
    assert run.training is not None
    assert (run.training.steps, run.group_size, run.policy.model) == (14, 8, "incident")
