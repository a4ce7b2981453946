"""Agents in the servers that people run them in: `make hosts`, in an environment of its own."""
