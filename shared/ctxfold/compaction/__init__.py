"""Making room: when, what and how, with the originals kept."""
