"""What a few lines of transformers sample per second: a batch in lock-step over one cache.

python -m benchmarks.torch_loop POLICY_DIR THREADS PROMPT_TOKENS NEW_TOKENS REPEATS BATCH…; one JSON line.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache


@torch.no_grad()
def tokens_per_second(model: Any, batch: int, prompt_tokens: int, new_tokens: int) -> float:
    """One burst: prompt, then one token per row and forward, with its log-probability."""
    ids = torch.randint(model.config.vocab_size, (batch, prompt_tokens))
    cache = DynamicCache(config=model.config)
    began = time.perf_counter()
    for _ in range(new_tokens):
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        ids = torch.multinomial(logprobs.exp(), 1)
        logprobs.gather(1, ids).tolist()
    return batch * new_tokens / (time.perf_counter() - began)


def main() -> None:
    """Warm up, then repeat each batch size."""
    policy, threads = Path(sys.argv[1]), int(sys.argv[2])
    prompt_tokens, new_tokens, repeats = map(int, sys.argv[3:6])
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    rates: dict[int, list[float]] = {}
    for batch in map(int, sys.argv[6:]):
        tokens_per_second(model, batch, prompt_tokens, new_tokens)
        rates[batch] = [tokens_per_second(model, batch, prompt_tokens, new_tokens) for _ in range(repeats)]
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
