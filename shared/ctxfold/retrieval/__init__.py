"""Finding archived messages that bear on a question: BM25, embeddings, and the passages recalled from both."""
