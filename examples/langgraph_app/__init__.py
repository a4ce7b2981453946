"""An application for LangGraph's server: an agent whose conversations stay in the model's window."""
