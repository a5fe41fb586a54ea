"""Frozen facts and pure decisions."""
