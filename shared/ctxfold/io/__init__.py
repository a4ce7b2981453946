"""Sessions and messages as files."""
