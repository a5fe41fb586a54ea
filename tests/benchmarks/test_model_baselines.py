"""The table of small models in docs/do/benchmarks.md says what `upcycle eval --json` said."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks.model_baselines import row_of, table, write_page
from benchmarks.stacks import BenchmarkFailed


def done(reward: dict[str, Any] | None, **coverage: Any) -> dict[str, Any]:
    overall = {"reward": reward, "success": {"value": 0.5, "interval": {"low": 0.125, "high": 0.875}}}
    counted = {"num_planned": 4, "num_graded": 4, "missing": {}, "policy_failures": {}, **coverage}
    return {
        "report": {"overall": overall, "families": [], "mean_turns": 2.25},
        "coverage": counted,
        "evaluation": {"versions": [14], "sampling": {}},
    }


def test_a_row_has_its_intervals_what_is_missing_and_what_counted_as_zero() -> None:
    whole = done(
        {"value": 0.0, "interval": {"low": 0.0, "high": 0.036}}, policy_failures={"context_spent": 3}
    )
    rows = [
        row_of("sheet-50", "incident", whole),
        row_of("repair-30", "tiny", done(None, num_graded=0, missing={"timeout": 4})),
        row_of("autonomy-10", "tiny", done({"value": 0.25, "interval": None}, num_graded=1)),
    ]
    assert [line.split(" | ")[1:] for line in table(rows).splitlines()[2:]] == [
        ["policy of `make demo`", "0.000 (0.000–0.036)", "50 (12–88) %", "4", "2.2", "`context_spent` 3 |"],
        ["tiny random model", "–", "50 (12–88) %", "0, 4 missing", "2.2", "none |"],
        ["tiny random model", "0.250 (all equal)", "50 (12–88) %", "1, 3 missing", "2.2", "none |"],
    ]


def test_a_page_without_its_marks_is_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(BenchmarkFailed, match="has lost its marks"):
        write_page(page, [])
    assert page.read_text() == "no marks"
