"""Anthropic's Messages wire."""
