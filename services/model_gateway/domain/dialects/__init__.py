"""Dialects: pairs of pure functions, a request body to the call that engines know, and a reply back."""
