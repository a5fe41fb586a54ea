"""Incident diagnosis: the running example. An on-call agent finds which service broke, and why."""
