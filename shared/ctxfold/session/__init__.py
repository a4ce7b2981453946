"""The objects that a user holds."""
