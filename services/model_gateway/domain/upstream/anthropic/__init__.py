"""Providers that speak Anthropic's messages: a call of the chat route there, a chat reply back."""
