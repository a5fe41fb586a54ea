"""The `upcycle` command. Each command's module is imported when it runs, so that `--help` is instant."""
