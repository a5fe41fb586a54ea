"""What every service shares: settings, lifecycle, operations endpoints, telemetry, logging, deadlines."""
