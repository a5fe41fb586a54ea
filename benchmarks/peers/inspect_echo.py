"""The echo tasks with inspect-ai, all in one process; one JSON line.

python inspect_echo.py URL TASKS CONCURRENT
"""

import json
import sys
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import exact
from inspect_ai.solver import generate


def main() -> None:
    """Play them all; the log goes to a folder that is removed."""
    url, tasks, concurrent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = get_model("openai-api/instant/echo", base_url=f"{url}/v1", api_key="none")
    numbers = map(str, range(tasks))
    samples = [Sample(input=f"say {number}", target=number, id=f"echo-{number}") for number in numbers]
    with tempfile.TemporaryDirectory() as folder:
        (log,) = eval(
            Task(dataset=samples, solver=generate(), scorer=exact()),
            model=model,
            max_connections=concurrent,
            max_samples=concurrent,
            display="none",
            log_dir=folder,
        )
        # The samples are read from the log when they are asked for.
        scores = [score.value for sample in log.samples for score in sample.scores.values()]
    right = sum(1 for value in scores if value == "C")
    print(json.dumps({"episodes": len(scores), "reward_mean": right / tasks}))


if __name__ == "__main__":
    main()
