"""The LlamaIndex face of ctxfold."""

__all__: list[str] = []
