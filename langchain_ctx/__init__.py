"""The LangChain face of ctxfold."""

__all__: list[str] = []
