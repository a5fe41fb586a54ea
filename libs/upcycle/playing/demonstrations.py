"""Demonstrations for SFT: a reference player's episodes as conversations, each of which earned success."""

import json
from collections.abc import Iterable
from pathlib import Path

from upcycle.playing.episode import PlayedEpisode
from upcycle.playing.errors import DemonstrationFailed
from upcycle.playing.in_process import play_tasks
from upcycle.playing.script_player import ReplyFunction
from upcycle.task_rows import Task


def write_demonstrations(path: Path | str, tasks: Iterable[Task], reply: ReplyFunction) -> int:
    """Play each task with `reply(task, messages)`, and write the conversations to a JSONL file as `upcycle
    train --sft` reads it; the number of lines. Raises DemonstrationFailed, then nothing is written."""
    lines = [_line(episode) for episode in play_tasks(tasks, reply)]
    Path(path).write_text("".join(lines), encoding="utf-8")
    return len(lines)


def _line(episode: PlayedEpisode) -> str:
    result, slug = episode.result, episode.task.slug
    if result is None:
        failure = episode.failure
        why = f"{failure.during} failed: {failure.message}" if failure else "no result"
        raise DemonstrationFailed(f"task {slug!r}: {why}")
    if not result.success:
        answer = episode.ending.answer if episode.ending else ""
        raise DemonstrationFailed(
            f"the reference player earned {result.score:.3f} of task {slug!r}, by answering {answer!r:.80}",
            f"see it: upcycle play tasks.py:{slug} --script player.py",
        )
    row = {"messages": episode.messages, "tools": episode.tools, "task": episode.task.digest}
    return json.dumps(row, ensure_ascii=False) + "\n"
