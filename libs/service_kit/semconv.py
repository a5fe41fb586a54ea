"""Names of spans and attributes. They are an interface: dashboards, tests and other tools read them.

GenAI and messaging names are those of the OpenTelemetry conventions as packaged with the SDK that we pin
(schema 1.44); what those lack is under `upcycle.`. A golden test compares this page with the package.
"""

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

# --- spans: invoke_agent (an episode) > chat (a turn) and execute_tool; messaging around them
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
PUBLISH: Final = "publish"
PROCESS: Final = "process"
TRAIN_STEP: Final = "train_step"

# --- GenAI attributes
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
"""Our trajectory id."""
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
"""The pinned name of the weights that answered, e.g. `incident@v12`."""
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_EVALUATION_NAME: Final = "gen_ai.evaluation.name"
GEN_AI_EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
GEN_AI_EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
GEN_AI_EVALUATION_RESULT: Final = "gen_ai.evaluation.result"
"""Name of the event that a grader adds per subscore."""
ERROR_TYPE: Final = "error.type"

# --- messaging attributes
MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_SYSTEM_NATS: Final = "nats"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_TEMPLATE: Final = "messaging.destination.template"
MESSAGING_CONSUMER_GROUP: Final = "messaging.consumer.group.name"
"""The durable that a message was handled for."""
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
"""The Nats-Msg-Id."""
MESSAGING_BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"

# --- ours
RUN_ID: Final = "upcycle.run.id"
GROUP_ID: Final = "upcycle.group.id"
EPISODE_ID: Final = "upcycle.episode.id"
TRAJECTORY_ID: Final = "upcycle.trajectory.id"
POLICY_MODEL: Final = "upcycle.policy.model"
POLICY_VERSION: Final = "upcycle.policy.version"
POLICY_OLDEST_VERSION: Final = "upcycle.policy.oldest_version"
POLICY_DIGEST: Final = "upcycle.policy.digest"
STALENESS: Final = "upcycle.staleness"
REWARD: Final = "upcycle.reward"
ADVANTAGE: Final = "upcycle.advantage"
TURN: Final = "upcycle.turn"
TASK_SLUG: Final = "upcycle.task.slug"
ENGINE_ID: Final = "upcycle.engine.id"
TRAIN_STEP_NUMBER: Final = "upcycle.train.step"


def chat_span(model: str) -> str:
    """Name of the span around one request to an engine."""
    return f"{CHAT} {model}"


def invoke_agent_span(scenario: str) -> str:
    """Name of the span around one episode."""
    return f"{INVOKE_AGENT} {scenario}"


def execute_tool_span(tool: str) -> str:
    """Name of the span around one tool call."""
    return f"{EXECUTE_TOOL} {tool}"


def publish_span(template: str) -> str:
    """Name of the span around one publish; `template` is the subject without its variable parts."""
    return f"{PUBLISH} {template}"


def process_span(template: str) -> str:
    """Name of the span around the handling of one message or batch."""
    return f"{PROCESS} {template}"
