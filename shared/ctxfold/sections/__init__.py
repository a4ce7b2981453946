"""Sections: texts that stand beside the conversation, and the sources that fill them."""
