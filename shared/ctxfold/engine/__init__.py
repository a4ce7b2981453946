"""Holds the path of a request as flows of effects: ingest, fit, build, send and commit."""
