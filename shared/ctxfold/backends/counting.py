"""Which text counter a provider's row asks for."""

from __future__ import annotations

from ctxfold.backends.profile import Profile
from ctxfold.tokens import RatioCounter, TextCounter, text_counter

__all__ = ["counter_for"]


def counter_for(profile: Profile) -> TextCounter:
    """The row's encoding, else its ratios; a counting endpoint costs a request each, so its rows are estimated too."""
    rules = profile.tokens
    if rules.kind == "tiktoken":
        return text_counter(encoding=rules.name)
    return RatioCounter(ascii_per_token=rules.ascii_per_token, cjk_tokens_per_char=rules.cjk_tokens_per_char)
