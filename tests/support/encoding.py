"""Loads the encoding that contexts count with, on import: half a second that processes forked afterwards do not need."""

from __future__ import annotations

from ctxfold.tokens.text import text_counter

text_counter(allow_download=False)
