"""The OpenAI-compatible chat completions wire."""
