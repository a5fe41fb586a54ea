"""Fields of completion requests that are passed on to engines.

Absent on purpose is what would reach past sampling into an engine: chat_template, kv_transfer_params,
prompt_embeds, priority, media options.
"""

from typing import Final

SAMPLING_FIELDS: Final = frozenset(
    {
        "model", "n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed",
        "stop", "stop_token_ids", "ignore_eos", "logprobs", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logit_bias", "bad_words", "allowed_token_ids", "stream",
        "stream_options", "user", "return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs",
        "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
        "add_special_tokens", "truncate_prompt_tokens", "response_format", "structured_outputs",
        "checkpoint",
    }
)  # fmt: skip
CHAT_FIELDS: Final = SAMPLING_FIELDS | frozenset(
    {
        "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
        "parallel_tool_calls", "functions", "function_call", "audio", "metadata", "modalities",
        "moderation", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier", "store",
        "verbosity", "web_search_options", "include_reasoning", "add_generation_prompt",
        "continue_final_message", "chat_template_kwargs", "prompt_token_ids", "continuation_from",
    }
)  # fmt: skip
COMPLETIONS_FIELDS: Final = SAMPLING_FIELDS | frozenset(
    {
        "prompt", "best_of", "echo", "suffix",
    }
)  # fmt: skip
