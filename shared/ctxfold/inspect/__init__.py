"""Reports on a session: why its window is what it is, its timeline and its archive."""
