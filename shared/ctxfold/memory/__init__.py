"""Memory items of an owner: stored, searched, shown as sections, and extracted from conversations."""
