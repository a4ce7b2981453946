"""The application that `make hosts` runs on LangGraph's server."""
