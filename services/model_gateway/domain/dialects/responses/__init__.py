"""OpenAI's /v1/responses, without a store."""
