"""The fields of the routes that engines have themselves: chat, completions, token routes."""

from typing import Final

from model_gateway.domain.fields import FieldTable, labels, passed, refused

_SAMPLING: Final = {
    **passed("string", "model checkpoint"),
    **passed("integer", "n max_tokens min_tokens top_k seed prompt_logprobs truncate_prompt_tokens"),
    **passed("number", "temperature top_p min_p frequency_penalty presence_penalty repetition_penalty"),
    **passed("string|array", "stop"),
    **passed("array", "stop_token_ids bad_words allowed_token_ids"),
    **passed("object", "logit_bias response_format structured_outputs stream_options"),
    **passed("boolean", "stream ignore_eos return_token_ids return_tokens_as_token_ids skip_special_tokens"),
    **passed("boolean", "spaces_between_special_tokens include_stop_str_in_output add_special_tokens"),
    **labels("string", "user"),
}

_SERVICE_TIER: Final = refused("string", "there is one tier; leave it out", "auto", "default")

MESSAGE_FIELDS: Final[FieldTable] = {
    **passed("string", "role name tool_call_id reasoning reasoning_content"),
    **passed("string|array", "content"),
    **passed("array", "tool_calls"),
    # What clients have in the messages that they got and send back.
    **labels("string", "refusal"),
    **labels("array", "annotations"),
    **labels("object|array|string|number|boolean", "parsed"),
    **labels("object", "provider_specific_fields"),
    "audio": refused("object", "answers are text"),
    "function_call": refused("object", "it was replaced by tool_calls"),
}
"""Of each of `messages`: what is unknown would reach the engine's chat template."""

CHAT_FIELDS: Final[FieldTable] = {
    **_SAMPLING,
    **passed("array", "messages tools prompt_token_ids"),
    **passed("integer", "max_completion_tokens top_logprobs continuation_from"),
    **passed("boolean", "logprobs parallel_tool_calls include_reasoning add_generation_prompt"),
    **passed("boolean", "continue_final_message"),
    **passed("string|object", "tool_choice"),
    **passed("object", "chat_template_kwargs"),
    **passed("string", "reasoning_effort"),
    **labels("object", "metadata prompt_cache_options"),
    **labels("string", "safety_identifier prompt_cache_key prompt_cache_retention"),
    "functions": refused("array", "it was replaced by tools", []),
    "function_call": refused("string|object", "it was replaced by tool_choice", "none"),
    "audio": refused("object", "answers are text"),
    "modalities": refused("array", "answers are text", ["text"], []),
    "moderation": refused("string|object|boolean", "nothing is moderated here; ask a moderation service"),
    "prediction": refused("object", "no engine takes a predicted answer"),
    "service_tier": _SERVICE_TIER,
    "store": refused("boolean", "nothing is stored; send false or leave it out", False),
    "verbosity": refused("string", "no engine has it; say it in the prompt", "medium"),
    "web_search_options": refused("object", "nothing is searched; give the model a tool"),
}
COMPLETIONS_FIELDS: Final[FieldTable] = {
    **_SAMPLING,
    **passed("string|array", "prompt"),
    **passed("integer", "best_of logprobs"),
    **passed("boolean", "echo"),
    **passed("string", "suffix"),
}
CHAT_TOKENS_FIELDS: Final[FieldTable] = {**CHAT_FIELDS, **passed("array", "tokens")}
GENERATE_FIELDS: Final[FieldTable] = {
    **passed("string", "model checkpoint request_id"),
    **labels("string", "cache_salt"),
    **passed("array", "token_ids"),
    **passed("object", "sampling_params stream_options"),
    **passed("boolean", "stream"),
}
GENERATE_SAMPLING_FIELDS: Final[FieldTable] = {
    **passed("integer", "n max_tokens min_tokens top_k seed logprobs prompt_logprobs truncate_prompt_tokens"),
    **passed("number", "temperature top_p min_p frequency_penalty presence_penalty repetition_penalty"),
    **passed("string|array", "stop"),
    **passed("array", "stop_token_ids bad_words allowed_token_ids"),
    **passed("object", "logit_bias structured_outputs"),
    **passed("boolean", "ignore_eos skip_special_tokens spaces_between_special_tokens"),
    **passed("boolean", "include_stop_str_in_output"),
}
TOKENIZE_FIELDS: Final[FieldTable] = {
    **passed("string", "model checkpoint prompt"),
    **passed("array", "messages tools"),
    **passed("boolean", "add_generation_prompt return_token_strs"),
    "add_special_tokens": refused("boolean", "text is encoded as it is", False),
}
DETOKENIZE_FIELDS: Final[FieldTable] = {**passed("string", "model checkpoint"), **passed("array", "tokens")}
