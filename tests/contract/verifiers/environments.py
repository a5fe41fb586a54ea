"""Environments of verifiers 0.1 and 0.4, as their authors write them: the same sums, the same tool."""

from typing import Final

CLASSIC: Final = '''
import verifiers as vf
from datasets import Dataset


def exact(completion, answer, **kwargs) -> float:
    return 1.0 if completion[-1].content.strip() == answer else 0.0


async def short(completion) -> float:
    return 1.0 if len(completion[-1].content) < 20 else 0.0


def judged(completion) -> float:
    raise ConnectionError("no judge today")


def sizes(completions) -> list[float]:
    return [0.5 for _ in completions]


class Chatty(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "And?"}]


def double(n: int) -> int:
    """Twice a number.

    Args:
        n: the number
    """
    if n > 100:
        raise ValueError("too large")
    return 2 * n


def load_environment(kind: str = "tool"):
    rows = Dataset.from_list([{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(5)])
    told = {"dataset": rows, "eval_dataset": rows.select(range(2)), "system_prompt": "Answer with a number."}
    rubric = vf.Rubric(funcs=[exact, short], weights=[0.8, 0.2])
    if kind == "group":
        rubric.add_reward_func(sizes, weight=0.0)
    if kind == "judged":
        rubric.add_reward_func(judged, weight=0.0)
    if kind == "heavy":
        rubric.add_reward_func(exact, weight=-0.5)
    if kind == "chatty":
        return Chatty(rubric=rubric, **told)
    if kind == "rows":
        info = {"tool_defs": [{"name": "x", "description": "", "parameters": {}}]}
        rows = Dataset.from_list([{"question": "?", "answer": "", "info": info}])
        return vf.SingleTurnEnv(dataset=rows, rubric=rubric)
    if kind == "tool":
        return vf.ToolEnv(tools=[double], rubric=rubric, max_turns=5, **told)
    return vf.SingleTurnEnv(rubric=rubric, **told)
'''

TASKSETS: Final = '''
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumState(vf.State):
    calls: int = 0


class SumTools(vf.Toolset[vf.ToolsetConfig, SumState]):
    TOOL_PREFIX = None

    @vf.tool
    def double(self, n: int) -> int:
        """Twice a number."""
        self.state.calls += 1
        if n > 100:
            raise ValueError("too large")
        return 2 * n


class SumTask(vf.Task[SumData, SumState]):
    @vf.reward(weight=0.8)
    async def exact(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.2)
    async def short(self, trace) -> float:
        if "no judge" in trace.last_reply:
            raise ConnectionError("no judge today")
        return float(len(trace.last_reply) < 20)

    @vf.metric
    async def called(self, trace) -> float:
        return float(trace.state.calls)

    @classmethod
    def toolsets(cls, config):
        return [SumTools(vf.ToolsetConfig())]


class SumConfig(vf.TasksetConfig):
    kind: str = "tool"


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        more = {"image": {"image": "python:3.12"}, "user": {"prompt": None}}.get(self.config.kind, {})
        for n in range(5):
            data = {"prompt": f"{n} + {n}?", "answer": str(2 * n), "system_prompt": "Answer with a number."}
            yield SumTask(SumData(**{**data, **more}), self.config.task)


__all__ = ["SumTaskset"]
'''
