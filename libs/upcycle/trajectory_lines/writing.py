"""An episode as a line of a trajectories file: one that was played here, or one that the platform stored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from upcycle.harness.parsing import with_reasoning
from upcycle.reporting.state_texts import entries_of_record
from upcycle.states import read_states

if TYPE_CHECKING:
    from upcycle.playing.episode import PlayedEpisode, PlayFailure
    from upcycle.results import Run

FORMAT: Final = "upcycle-trajectory/1"
_REMOVED: Final[tuple[object, ...]] = (None, "", [], {})


def line_of_played(
    episode: "PlayedEpisode", run: "Run", stopped: "PlayFailure | None", agent: str
) -> dict[str, Any]:
    """Reward and success as they count: 0 for a failure of the policy, none for a missing episode. stopped:
    why the agent gave up."""
    played, usage = episode.to_json(), run.usage
    line = {
        "format": FORMAT,
        "run_id": run.run_id,
        "episode_id": run.episode_id,
        "trajectory_id": "",
        "agent": agent,
        "versions": None,
        **played,
        "turns": _with_rewards(played["turns"], run.turn_rewards),
        "task": {**played["task"], "digest": episode.task.digest},
        "reward": None if run.is_error else run.reward,
        "success": None if run.is_error else run.success,
        "policy_failure": run.policy_failure,
        "failure_kind": run.failure,
        "failure_detail": run.failure_detail,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    if usage.cost is not None:
        line["cost"] = usage.cost
    if stopped is not None:
        line["failure"] = stopped.to_json()
    return line


def line_of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a record of the platform, as `upcycle trajectories export --form records` writes it: in its JSON, a
    field with its default value is left out. The platform keeps the digest of a task, not its arguments."""
    body, summary = record.get("body", {}), record.get("summary", {})
    episode, graded = summary.get("episode", {}), bool(summary.get("graded"))
    failure = summary.get("failure") or body.get("failure") or {}
    turns = body.get("turns", [])
    return {
        "format": FORMAT,
        "run_id": episode.get("run_id", ""),
        "episode_id": episode.get("episode_id", ""),
        "trajectory_id": episode.get("trajectory_id", ""),
        "group_id": episode.get("group_id", ""),
        "agent": episode.get("model", ""),
        "versions": _span(body.get("sampled_by") or summary.get("sampled_by") or {}),
        "source_digest": body.get("source_digest", ""),
        "task": {
            "slug": episode.get("task_slug", ""),
            "family": episode.get("family", ""),
            "digest": episode.get("task_digest", ""),
            "split": _word(episode.get("split"), "SPLIT_"),
            **({"taskset": episode["taskset"]} if episode.get("taskset") else {}),
        },
        "messages": [*map(_prompt_message, body.get("prompt", [])), *_said(turns)],
        "tools": _parsed(body.get("tools_json")) or [],
        "turns": _with_rewards([_turn(turn) for turn in turns], summary.get("turn_rewards", ())),
        "stop_reason": _word(body.get("stop_reason"), "STOP_REASON_"),
        "answer": body.get("answer", ""),
        **_guided(episode, body),
        **({"labels": episode["labels"]} if episode.get("labels") else {}),
        "reward": float(summary.get("reward", 0.0)) if graded else None,
        "success": bool(summary.get("success")) if graded else None,
        "subscores": [_subscore(one) for one in summary.get("subscores", [])] if graded else [],
        "policy_failure": failure.get("kind", ""),
        "failure_kind": "",
        "failure_detail": "\n".join(failure[key] for key in ("rule", "detail") if failure.get(key)),
        "completion_tokens": sum(len(turn.get("sampled_ids", ())) for turn in turns),
        "states": [asdict(state) for state in read_states(entries_of_record(body))],
    }


def _guided(episode: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Of an episode whose prompt had guidance: after which attempt, the text, and its parts by kind."""
    if not episode.get("guided_after"):
        return {}
    parts = [{"kind": one["kind"], "text": one["text"]} for one in body.get("guidance_parts", ())]
    said = {"guided_after": episode["guided_after"], "guidance": body.get("guidance", "")}
    return {**said, "guidance_parts": parts}


def _span(sampled_by: Mapping[str, Any]) -> dict[str, int] | None:
    """64-bit numbers are texts in the JSON of protobuf. None: no version of a model here sampled it."""
    span = {name: int(sampled_by.get(name, 0)) for name in ("oldest", "newest")}
    return None if span["oldest"] < 0 else span


def _word(name: Any, prefix: str) -> str:
    return str(name or "").removeprefix(prefix).lower()


def _parsed(text: Any) -> Any:
    """JSON that an agent or an environment wrote; its text where it is none."""
    try:
        return json.loads(text or "null")
    except ValueError:
        return text


def _calls(turn: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = turn.get("tool_calls", [])
    return found


def _message_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": call.get("call_id", ""),
            "type": "function",
            "function": {"name": call.get("name", ""), "arguments": call.get("arguments_json", "")},
        }
        for call in _calls(message)
    ]


def _prompt_message(message: Mapping[str, Any]) -> dict[str, Any]:
    said = {"role": message.get("role", ""), "content": message.get("content", "")}
    more: dict[str, Any] = {"tool_calls": _message_calls(message)}
    more |= {name: message.get(name) for name in ("tool_call_id", "name")}
    return {**said, **{name: value for name, value in more.items() if value not in _REMOVED}}


def _said(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The assistant's message of each turn, then one for each result of a tool."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        content = with_reasoning(turn.get("reasoning", ""), turn.get("text", ""))
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls := _message_calls(turn):
            message["tool_calls"] = calls
        messages.append(message)
        messages += [
            {"role": "tool", "content": one.get("content", ""), "tool_call_id": one.get("call_id", "")}
            for one in turn.get("tool_results", [])
        ]
    return messages


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    results = {one.get("call_id", ""): one for one in turn.get("tool_results", [])}
    calls = []
    for call in _calls(turn):
        result = results.get(call.get("call_id", ""), {})
        calls.append(
            {
                "name": call.get("name", ""),
                "arguments": _parsed(call.get("arguments_json")) or {},
                "result": result.get("content", ""),
                "is_error": bool(result.get("is_error")),
            }
        )
    apart = {"reasoning": turn["reasoning"]} if turn.get("reasoning") else {}
    apart |= {"restarts_context": True} if turn.get("restarts_context") else {}
    return {"text": turn.get("text", ""), "tool_calls": calls, **apart}


def _with_rewards(turns: Sequence[Mapping[str, Any]], rewards: Sequence[float]) -> list[dict[str, Any]]:
    """What each turn earns by itself, where the scenario says so."""
    if len(rewards) != len(turns):
        return [dict(turn) for turn in turns]
    return [{**turn, "reward": reward} for turn, reward in zip(turns, rewards, strict=True)]


def _subscore(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": one.get("name", ""),
        "value": float(one.get("value", 0.0)),
        "weight": float(one.get("weight", 0.0)),
        "info": one.get("info", ""),
        "children": [_subscore(child) for child in one.get("children", [])],
    }
