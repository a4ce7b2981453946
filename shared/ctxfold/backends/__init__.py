"""Model services: backends, provider rows, and what the wire needs."""
