"""TRL 1.16's synchronous GRPOTrainer on the incident task, by its own environment hook; a JSON line per step.

Runs in an environment of its own (`pip install trl==1.16.*`) with the repository on PYTHONPATH:
python trl_incident.py JOB.json. The job names the policy, the tasks with their rendered prompts, the
hyperparameters and a folder for the weights of every step. The clock stands still while weights are written.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from examples.incident.grading import Grade, grade
from examples.incident.world import World, draw_incident
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

JOB = json.loads(Path(sys.argv[1]).read_text())
CLOCK = Counter()
SUCCESS = []
# The policy's format, in the words of transformers' response parser.
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


class Incident:
    """The hook: one world per rollout, its tools as methods."""

    def __init__(self) -> None:
        self._world = None

    def reset(self, seed: int, **_: Any) -> None:
        """Another incident."""
        self._world = World(draw_incident("train", seed), tool_delay_s=JOB["tool_delay_s"])

    def _timed(self, call: Callable[..., str], *arguments: str) -> str:
        began = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            CLOCK["tools"] += time.perf_counter() - began

    def list_issues(self) -> str:
        """Open issues, with their errors."""
        return self._timed(self._world.list_issues)

    def get_stack_trace(self, issue_id: str) -> str:
        """
        Stack of an issue, innermost call last.

        Args:
            issue_id: number of the issue
        """
        return self._timed(self._world.get_stack_trace, issue_id)

    def search_logs(self, service: str) -> str:
        """
        Recent log lines of a service.

        Args:
            service: its name
        """
        return self._timed(self._world.search_logs, service)

    def recent_deploys(self, service: str) -> str:
        """
        Deployments of a service, newest first.

        Args:
            service: its name
        """
        return self._timed(self._world.recent_deploys, service)

    def _grade(self, completion: Sequence[dict[str, Any]]) -> Grade:
        last = completion[-1]
        answered = last["role"] == "assistant" and not last.get("tool_calls")
        answer = last["content"] if answered else ""
        return grade(self._world.incident, answer, self._world.num_calls)


def reward(completions: list[Any], environments: list[Incident], **_: Any) -> list[float]:
    """The scenario's own grade."""
    grades = [environment._grade(one) for environment, one in zip(environments, completions, strict=True)]
    SUCCESS.append(sum(one.success for one in grades) / len(grades))
    return [one.score for one in grades]


class Steps(TrainerCallback):
    """Says when a step ended, keeps its weights, and ends the run once training has arrived."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.paused = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> Any:
        now = time.perf_counter()
        tensors = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
        save_file(tensors, Path(JOB["folder"]) / f"step-{state.global_step:03d}.safetensors")
        line = {"step": state.global_step, "seconds": now - self.began - self.paused, "success": SUCCESS[-1]}
        print(json.dumps({**line, "clock": dict(CLOCK), "threads": torch.get_num_threads()}), flush=True)
        self.paused += time.perf_counter() - now
        recent = SUCCESS[-2:]
        if len(recent) == 2 and min(recent) >= JOB["stop_at"]:
            control.should_training_stop = True
        return control


LOOP = "{%- for tool in tools %}\n{%- set spec = tool.function if tool.function is defined else tool %}"
LINE = "{{- '\\n' + spec.name + '(' + spec.parameters.properties | join(',') + ')' }}\n{%- endfor %}"


def ordered(template: str) -> str:
    """The same template with the tools in the order that the policy knows; the trainer sorts them by name."""
    assert LOOP in template
    assert LINE in template
    loop = (
        f"{{%- for name in {json.dumps(JOB['tools'])} %}}"
        "{%- for tool in tools if tool.function.name == name %}{%- set spec = tool.function %}"
    )
    return template.replace(LOOP, loop).replace(LINE, LINE + "{%- endfor %}")


def configured() -> GRPOConfig:
    """The recipe's hyperparameters; loss and advantages as the platform's defaults define them."""
    return GRPOConfig(
        output_dir=JOB["folder"],
        per_device_train_batch_size=JOB["prompts"] * JOB["group"],
        num_generations=JOB["group"],
        max_completion_length=JOB["max_completion_tokens"],
        max_tool_calling_iterations=JOB["max_turns"] - 1,
        max_steps=JOB["steps"],
        learning_rate=JOB["learning_rate"],
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        temperature=1.0,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="none",
        epsilon=0.2,
        epsilon_high=0.28,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=JOB["seed"],
    )


def timed(trainer: GRPOTrainer, name: str, label: str) -> None:
    """Count the seconds of a method."""
    inner = getattr(trainer, name)

    def method(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*arguments, **options)
        finally:
            CLOCK[label] += time.perf_counter() - began

    setattr(trainer, name, method)


def choose_threads(model: Any) -> None:
    """The fastest number of threads for its generation on this machine, now: small models often want one."""
    tokens = torch.ones((JOB["prompts"] * JOB["group"], 96), dtype=torch.long)
    seconds = {}
    for threads in JOB["threads"]:
        torch.set_num_threads(threads)
        with torch.no_grad():
            model(input_ids=tokens)
            began = time.perf_counter()
            for _ in range(3):
                model(input_ids=tokens)
        seconds[threads] = time.perf_counter() - began
    torch.set_num_threads(min(seconds, key=seconds.__getitem__))


def main() -> None:
    """Train, a line per step."""
    tokenizer = AutoTokenizer.from_pretrained(JOB["policy"], padding_side="left")
    tokenizer.chat_template = ordered(tokenizer.chat_template)
    tokenizer.response_template = RESPONSE
    model = AutoModelForCausalLM.from_pretrained(JOB["policy"], dtype=torch.float32)
    choose_threads(model)
    rows = [
        {"prompt": [{"role": "user", "content": task["prompt"]}], "seed": task["seed"]}
        for task in JOB["tasks"]
    ]
    steps = Steps()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=configured(),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=Incident,
        callbacks=[steps],
    )
    trainer._batch_environments = [None]
    ids, _, _ = trainer._tokenize_prompts([rows[0]["prompt"]])
    assert list(ids[0]) == JOB["first_prompt_ids"], "the peer's prompt is not the policy's"
    timed(trainer, "_generate_single_turn", "generation")
    timed(trainer, "_calculate_rewards", "rewards")
    timed(trainer, "_generate", "rollouts")
    steps.began = time.perf_counter()
    trainer.train()


if __name__ == "__main__":
    main()
