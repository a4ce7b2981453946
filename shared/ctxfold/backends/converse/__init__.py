"""The Converse wire of Amazon Bedrock."""
