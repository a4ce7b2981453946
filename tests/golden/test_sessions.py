"""Several hundred random sessions send and show, byte for byte, what they did when their hashes were stored."""

from __future__ import annotations

import pytest

from tests.golden.sessions import FACES, first_difference, seeds, stored


# workflows ask every attribute of an agent, pydantic's deprecated ones too
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning:inspect")
@pytest.mark.parametrize("face", FACES)
def test_every_request_and_window_is_as_stored(face: str) -> None:
    expected = stored()
    assert set(seeds(face)) <= expected.keys()
    different = [problem for seed in seeds(face) if (problem := first_difference(seed, expected[seed]))]
    assert not different, "\n".join(different)
