"""Protobuf to domain and back, nothing else."""
