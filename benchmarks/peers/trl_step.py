"""Seconds of one optimizer step of TRL 1.16's GRPOTrainer on a recorded batch; one JSON line.

Runs in an environment of its own (`pip install 'trl==1.16.*'`):
python trl_step.py POLICY_DIR ROWS.npz THREADS REPEATS

What is timed is its own training_step (loss, backward) with the recorded batch in place of generation, then
clipping and the optimizer: no logging, no data loading. The loss is ours: dapo (token mean over the step),
clip 0.2/0.28, no reference.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from datasets import Dataset
from memory import resident_mib, step_peak_mib
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

WARM_UP = 2


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Words t0, t1, …: only needed because the trainer wants one."""
    words = {f"t{index}": index for index in range(vocabulary)}
    made = Tokenizer(models.WordLevel(words, "t0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "t0", "eos_token": "t1"}
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **special)


def inputs_of(path: Path) -> dict[str, torch.Tensor]:
    """The batch in the trainer's own form: completions padded on the right, observations in tool_mask."""
    arrays = np.load(path)
    prompt = int(arrays["prompt"])
    ids, trained = torch.tensor(arrays["ids"]), torch.tensor(arrays["trained"]).long()
    real = (torch.arange(ids.shape[1])[None] < torch.tensor(arrays["lengths"])[:, None]).long()
    mask, tool = real[:, prompt:], trained[:, prompt:]
    return {
        "prompt_ids": ids[:, :prompt].contiguous(),
        "prompt_mask": torch.ones_like(ids[:, :prompt]),
        "completion_ids": ids[:, prompt:].contiguous(),
        "completion_mask": mask.contiguous(),
        "tool_mask": tool.contiguous(),
        "advantages": torch.tensor(arrays["advantages"]),
        "old_per_token_logps": torch.tensor(arrays["sampler"])[:, prompt:].contiguous(),
        "num_items_in_batch": (mask * tool).sum(),
    }


def trainer_of(policy: Path, folder: str, rows: int, longest: int) -> GRPOTrainer:
    """Its trainer with the settings of the comparison."""
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=rows,
        num_generations=2,
        max_completion_length=longest,
        learning_rate=1e-5,
        adam_beta2=0.95,
        beta=0.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        temperature=1.0,
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "t2"}] * 8),
        processing_class=tokenizer(model.config.vocab_size),
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def main() -> None:
    """Warm up, then repeat."""
    policy, path = Path(sys.argv[1]), Path(sys.argv[2])
    threads, repeats = int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    batch = inputs_of(path)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(policy, folder, *batch["completion_ids"].shape)
    trainer._prepare_inputs = lambda inputs: inputs
    model, optimizer = trainer.model, trainer.optimizer
    before, seconds, first = resident_mib(), [], {}
    for _ in range(WARM_UP + repeats):
        began = time.perf_counter()
        loss = trainer.training_step(model, dict(batch), batch["num_items_in_batch"])
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        first = first or {"loss": float(loss), "grad_norm": float(norm)}
    print(json.dumps({**first, "seconds": seconds[WARM_UP:], "peak_mib": step_peak_mib() - before}))


if __name__ == "__main__":
    main()
