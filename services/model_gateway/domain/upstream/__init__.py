"""Upstream providers: models of others behind the gateway's own endpoint."""
