"""An application for LlamaIndex's workflow server: an agent whose conversations stay in the model's window."""
