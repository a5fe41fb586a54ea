"""RunSummary as the text of a column."""

import json

from scenario_runner.domain.retention import RunSummary
from scenario_runner.domain.runs import Counts, EpisodeState
from scenario_runner.domain.source_groups import SourceGroupState, SourceTally


def summary_to_json(summary: RunSummary) -> str:
    """As it is stored."""
    counts = summary.counts
    return json.dumps(
        {
            "why": summary.why,
            "by_state": {state.value: count for state, count in counts.by_state.items()},
            "groups_open": counts.groups_open,
            "groups_by_outcome": dict(counts.groups_by_outcome),
            "tallies": [
                [one.source_run_id, one.state.value, one.reason, one.count] for one in summary.tallies
            ],
        },
        sort_keys=True,
    )


def summary_from_json(text: str) -> RunSummary:
    """What `summary_to_json` made."""
    found = json.loads(text)
    by_state = {EpisodeState(state): int(count) for state, count in found["by_state"].items()}
    outcomes = {str(outcome): int(count) for outcome, count in found["groups_by_outcome"].items()}
    counts = Counts(by_state, int(found["groups_open"]), sum(outcomes.values()), outcomes)
    tallies = tuple(
        SourceTally(source, SourceGroupState(state), reason, int(count))
        for source, state, reason, count in found["tallies"]
    )
    return RunSummary(counts, tallies, str(found["why"]))
