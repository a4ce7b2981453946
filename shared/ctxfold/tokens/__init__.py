"""Token counts: of text, of media, and of whole messages."""
