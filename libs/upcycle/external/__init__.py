"""Models of other programs as agents: OpenAI's chat completions, Anthropic's Messages, Gemini's
generateContent.

One HTTP client (httpx2, which the SDK has already) asks all three. The harness sends one kind of request and
reads one kind of answer, so that the vendors' clients would add three packages, a second retry policy each
and a second place where a key is read, and nothing that an evaluation uses.
"""
