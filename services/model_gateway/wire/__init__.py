"""protobuf <-> domain, nothing else."""
