"""One technology per module: SQL, the object store, the planner's gRPC."""
