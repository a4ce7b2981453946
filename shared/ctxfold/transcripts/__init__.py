"""Reads conversations that other programs keep: `reading.read_transcripts` yields them, one after the other."""
