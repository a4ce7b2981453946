"""Stores for logs: `ctxfold.stores.memory.MemoryStore` and `ctxfold.stores.sql.SqlStore`."""
