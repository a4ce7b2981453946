"""ctxfold: decides what a model sees next, over a log in which nothing is lost."""

__all__: list[str] = []
