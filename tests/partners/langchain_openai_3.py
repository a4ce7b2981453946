"""ChatOpenAI on chat completions and on Responses, with openai 3."""

from tests.partners.langchain_openai import main

__all__ = ["main"]
