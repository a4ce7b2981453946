"""The pruning orders side by side: redundancy-aware ones keep more of what single runs need later than oldest first does."""

from __future__ import annotations

import pytest

from tests.benchmarks import pruning
from tests.benchmarks.data import DataMissingError


def test_orders_keep_most_copied_arguments_visible_when_half_is_pruned() -> None:
    try:
        found = {kind: pruning.kept_arguments(kind, 0.5, 1) for kind in pruning.KINDS}
    except DataMissingError as missing:
        pytest.skip(str(missing))
    assert all(k.copied == found["reactive"].copied > 400 for k in found.values())
    assert all(k.visible >= 0.7 * k.copied for k in found.values())
    assert found["mig"].visible > found["reactive"].visible
    assert pruning.never_better(list(found.values())) == ["subgoal"]
