"""What is remembered beyond the conversation: kept, found again, and learnt from it."""
