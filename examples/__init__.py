"""Programs that use ctxfold, to run from the root of the repository."""
