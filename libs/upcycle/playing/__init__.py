"""One episode without the platform: `upcycle play`. An environment, a player, the harness between them."""
