"""An application for Restate: an agent whose turns survive the end of their process, with its conversations in ctxfold's store."""
