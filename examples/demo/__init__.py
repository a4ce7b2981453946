"""Runs a conversation of ten times its window through LangChain, then asks questions about it through LlamaIndex."""
