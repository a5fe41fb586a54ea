"""The two gRPC services: TasksetService (public) and EnvironmentService (internal)."""
