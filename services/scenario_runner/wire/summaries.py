"""RunSummary, and the Counts of a run, as the text of a column."""

import json
from typing import Any

from scenario_runner.domain.retention import RunSummary
from scenario_runner.domain.runs import Counts, EpisodeState
from scenario_runner.domain.source_groups import SourceGroupState, SourceTally


def summary_to_json(summary: RunSummary) -> str:
    """As it is stored."""
    return json.dumps(
        {
            "why": summary.why,
            **_parts_of(summary.counts),
            "tallies": [
                [one.source_run_id, one.state.value, one.reason, one.count] for one in summary.tallies
            ],
        },
        sort_keys=True,
    )


def summary_from_json(text: str) -> RunSummary:
    """What `summary_to_json` made."""
    found = json.loads(text)
    counts = _counts_of(found)
    tallies = tuple(
        SourceTally(source, SourceGroupState(state), reason, int(count))
        for source, state, reason, count in found["tallies"]
    )
    return RunSummary(counts, tallies, str(found["why"]))


def counts_to_json(counts: Counts) -> str:
    """As they are stored."""
    return json.dumps(_parts_of(counts), sort_keys=True)


def counts_from_json(text: str) -> Counts:
    """What `counts_to_json` made."""
    return _counts_of(json.loads(text))


def _parts_of(counts: Counts) -> dict[str, Any]:
    return {
        "by_state": {state.value: count for state, count in counts.by_state.items()},
        "groups_open": counts.groups_open,
        "groups_by_outcome": dict(counts.groups_by_outcome),
    }


def _counts_of(found: dict[str, Any]) -> Counts:
    by_state = {EpisodeState(state): int(count) for state, count in found["by_state"].items()}
    outcomes = {str(outcome): int(count) for outcome, count in found["groups_by_outcome"].items()}
    return Counts(by_state, int(found["groups_open"]), sum(outcomes.values()), outcomes)
