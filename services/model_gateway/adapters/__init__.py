"""One technology per module: HTTP to engines, the registry's gRPC, SQL, the object store."""
