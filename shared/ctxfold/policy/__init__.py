"""The settings of a session, the triggers of compaction, and the prices of tokens."""
