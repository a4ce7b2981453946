"""Defines the prices of tokens, and what a session spent and saved."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from operator import add
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from ctxfold.messages import Usage

MTOK = 1_000_000


class Prices(BaseModel):
    """Prices per million tokens, in one currency of the user's choice."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input_per_mtok: float = Field(ge=0, description="input that was neither read from the cache nor written to it")
    cache_read_per_mtok: float = Field(ge=0)
    cache_write_per_mtok: float = Field(ge=0)
    output_per_mtok: float = Field(ge=0, description="reasoning included")

    @classmethod
    def relative(cls, *, read: float = 0.1, write: float = 1.25, output: float = 5) -> Self:
        """Returns prices in units of a plain input token, for decisions in which the currency does not matter."""
        return cls(input_per_mtok=1, cache_read_per_mtok=read, cache_write_per_mtok=write, output_per_mtok=output)


PER_TOKEN = Prices(**{name: MTOK * price for name, price in Prices.relative()})


def cost(usage: Usage, prices: Prices) -> float:
    """Returns the cost of the usage. Reasoning counts as output, cache hits and cache writes as input."""
    plain = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
    total = (
        plain * prices.input_per_mtok
        + usage.cache_read_tokens * prices.cache_read_per_mtok
        + usage.cache_write_tokens * prices.cache_write_per_mtok
        + usage.output_tokens * prices.output_per_mtok
    )
    return total / MTOK


@dataclass(frozen=True, slots=True)
class CostLine:
    """The cost of a session, summary calls included, and what the cache and compaction saved.

    A saving is negative when caching or compaction cost more than it saved. `with_economic` is about what the session would have
    cost with EconomicTrigger; 0 where nothing is known of that. Where no prices are known, all of it is `in_tokens`: in plain
    input tokens, by `Prices.relative()`.
    """

    spent: float = 0.0
    saved_by_cache: float = 0.0
    saved_by_compaction: float = 0.0
    with_economic: float = 0.0
    in_tokens: bool = False

    def __add__(self, other: CostLine) -> CostLine:
        spent, by_cache, by_compaction, economic, in_tokens = map(add, astuple(self), astuple(other))
        return CostLine(spent, by_cache, by_compaction, economic, bool(in_tokens))

    def __str__(self) -> str:
        form, unit = (",.0f", " plain input tokens") if self.in_tokens else (".4f", "")
        return (
            f"spent {self.spent:{form}}{unit}, saved by cache {self.saved_by_cache:{form}}, "
            f"saved by compaction {self.saved_by_compaction:{form}}"
        ) + (f"; with EconomicTrigger() about {self.with_economic:{form}}" if self.with_economic else "")


def cost_line(
    usage: Usage, prices: Prices, *, uncompacted_input_tokens: int, summaries: Usage | None = None
) -> CostLine:
    """Returns what a session spent and saved.

    `usage` sums the calls of the conversation, `summaries` those of the summarizer. `uncompacted_input_tokens` is the input that
    the same calls would have had without compaction. The difference is priced as cache reads when the provider reported any hit
    (old history would have been one), else as plain input, less the cost of the summary calls. `spent` already includes the cache
    writes that compaction caused.
    """
    summary_usage = summaries or Usage()
    total = usage + summary_usage
    uncached = Usage(input_tokens=total.input_tokens, output_tokens=total.output_tokens)
    spent = cost(total, prices)
    avoided = uncompacted_input_tokens - usage.input_tokens
    price = prices.cache_read_per_mtok if usage.cache_read_tokens else prices.input_per_mtok
    return CostLine(
        spent=spent,
        saved_by_cache=cost(uncached, prices) - spent,
        saved_by_compaction=avoided * price / MTOK - cost(summary_usage, prices),
    )
