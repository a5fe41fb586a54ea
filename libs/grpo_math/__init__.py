"""Advantages, token losses, aggregation and packing for policy-gradient training: pure torch, no I/O."""
