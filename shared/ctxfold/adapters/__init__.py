"""Parts that both framework packages share."""
