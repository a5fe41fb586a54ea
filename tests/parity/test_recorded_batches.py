"""Our step against batches that TRL 1.16 recorded: loss and gradient of every case."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.parity import compare
from tests.parity.recorded_batches import RecordedBatch, objective_of

RECORDED = Path(__file__).parent / "data" / "parity_trl.npz"
OPTIONS = RECORDED.with_name("parity_trl_options.npz")
"""Other values of TRL's options, and others together, on a smaller model with tied embeddings."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_recorded_case_is_reproduced_on_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--ranks=1", str(RECORDED)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({line.split()[0] for line in lines[:-3]}) == 25


@pytest.mark.slow
@pytest.mark.study
@pytest.mark.timeout(600)
def test_every_recorded_case_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([str(RECORDED)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("150 of 150 within")
    assert lines[-2].startswith("worst loss error")
    assert lines[-1].startswith("worst gradient error")
    assert len({line.split()[0] for line in lines[:-3]}) == 25
    for computation in ("packed", "padded", "packed-2-ranks", "padded-2-ranks"):
        assert sum(line.split()[1] == computation for line in lines[:-3]) == 25


def test_every_option_means_what_it_means_there() -> None:
    found = list(compare.check(RecordedBatch(OPTIONS), compare.COMPUTATIONS))
    assert len(found) == 20 * len(compare.COMPUTATIONS)
    assert [finding.line for finding in found if not finding.passed] == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"loss_type": "dapo", "use_adaptive_entropy": True}, "use_adaptive_entropy"),
        ({"loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask"}, "vespo"),
        ({"loss_type": "dapo", "vllm_importance_sampling_mode": "token_truncate"}, "count the sampler twice"),
    ],
)
def test_an_option_that_cannot_be_followed_is_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        objective_of(config, two_policies=False)


def test_an_unread_option_in_a_file_ends_in_a_status_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = altered(tmp_path)
    manifest = json.loads(path.with_suffix(".json").read_text())
    manifest["cases"]["dapo"]["config"]["entropy_target"] = 0.2
    path.with_suffix(".json").write_text(json.dumps(manifest))
    assert compare.main(["--ranks=1", str(path)]) == 2
    assert "entropy_target" in capsys.readouterr().err


def altered(folder: Path, **changes: float) -> Path:
    """A copy of the recorded file with some arrays scaled."""
    path = folder / "altered.npz"
    arrays = dict(np.load(RECORDED))
    for name, factor in changes.items():
        arrays[name] = arrays[name] * factor
    np.savez(path, **arrays)
    shutil.copy(RECORDED.with_suffix(".json"), path.with_suffix(".json"))
    return path


@pytest.mark.parametrize("array", ["case/dapo/loss", "case/dapo/grad", "w/model.norm.weight"])
def test_a_small_difference_is_found(tmp_path: Path, array: str) -> None:
    batch = RecordedBatch(altered(tmp_path, **{array: 1.0001}))
    found = compare.check(batch, compare.COMPUTATIONS[:1])
    assert "dapo" in {finding.case for finding in found if not finding.passed}


def test_a_difference_ends_in_a_non_zero_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "COMPUTATIONS", compare.COMPUTATIONS[:1])
    assert compare.main(["--ranks=1", str(altered(tmp_path, **{"case/grpo/loss": 1.0001}))]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.npz").write_bytes(b"nothing")
    assert compare.main([str(tmp_path / "empty.npz")]) == 2
    assert compare.main([str(tmp_path / "missing.npz")]) == 2


def test_rows_of_one_prompt_share_it() -> None:
    case = RecordedBatch(RECORDED).cases()[0]
    assert len({row.group_id for row in case.rows}) == 3
    assert len(case.rows) == 12
