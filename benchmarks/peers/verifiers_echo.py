"""The echo tasks with verifiers 0.1.14, all in one process; one JSON line.

python verifiers_echo.py URL TASKS CONCURRENT
"""

import json
import sys

import verifiers as vf
from datasets import Dataset


def same(completion, answer) -> float:  # noqa: ANN001 - called by the peer, by name
    """1 for the number that was asked for."""
    return 1.0 if completion[-1].content == answer else 0.0


def main() -> None:
    """Play them all; nothing is written."""
    url, tasks, concurrent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rows = [{"question": f"say {number}", "answer": str(number)} for number in range(tasks)]
    env = vf.SingleTurnEnv(eval_dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[same]))
    client = vf.ClientConfig(api_base_url=f"{url}/v1", api_key_var="OPENAI_API_KEY")
    done = env.evaluate_sync(client, "echo", max_concurrent=concurrent)
    rewards = [output["reward"] for output in done["outputs"]]
    print(json.dumps({"episodes": len(rewards), "reward_mean": sum(rewards) / tasks}))


if __name__ == "__main__":
    main()
