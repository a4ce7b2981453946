"""Real peers of other projects, each in an environment of its own, before the strict servers of ctxfold.testing.

A peer is a module NAME.py here with a `main()` that raises where it fails, and NAME.txt with what its environment installs.
"""
