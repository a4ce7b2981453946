"""Holds the append-only log of a session and the view that is folded from it."""
