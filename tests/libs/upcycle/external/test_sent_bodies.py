"""What of an episode that was played here a platform keeps: reasoning apart, and the states."""

from upcycle.external.sending import body_of
from upcycle.harness import AssistantTurn, Ending, StopReason, TakenTurn, ToolCall, ToolOutcome
from upcycle.playing.episode import PlayedEpisode
from upcycle.reporting.state_texts import states_in_order
from upcycle.states import StateEntry
from upcycle.stored_states import states_of
from upcycle.tasks import EnvironmentRef, Task

TASK = Task(EnvironmentRef("shop"), "count", "{}", "tea")


def played(*states: StateEntry | None) -> PlayedEpisode:
    """One call, then the answer."""
    first, after, last = states
    looked = TakenTurn(AssistantTurn("", (ToolCall("look", {}),), reasoning="Where?"))
    looked.outcomes.append(ToolOutcome("seen", state=after))
    episode = PlayedEpisode(TASK, prompt=[{"role": "user", "content": "?"}], first_state=first)
    episode.turns = [looked, TakenTurn(AssistantTurn("tea"))]
    episode.ending, episode.last_state = Ending(StopReason.ANSWERED, "tea"), last
    return episode


def test_a_body_has_reasoning_and_states() -> None:
    patch = '[{"op":"replace","path":"/n","value":2}]'
    body = body_of(played(StateEntry('{"n":1}'), StateEntry(patch=patch), StateEntry(note="left out")))
    assert [(turn.reasoning, turn.text) for turn in body.turns] == [("Where?", ""), ("", "tea")]
    assert [(state.value, state.note) for state in states_of(body)] == [
        ({"n": 1}, ""),
        ({"n": 2}, ""),
        (None, "left out"),
    ]
    assert states_in_order(body) == [
        'at the prompt: state: {"n":1}',
        f"turn 1, after look: state changed: {patch}",
        "before the grade: state: left out",
    ]


def test_without_a_state_nothing_is_kept_of_it() -> None:
    body = body_of(played(None, None, None))
    assert not body.HasField("first_state")
    assert (states_of(body), states_in_order(body)) == ([], [])
