"""Where logs are kept: `ctxfold.stores.memory.MemoryStore` and `ctxfold.stores.sql.SqlStore`."""
