"""Model services as ports."""
