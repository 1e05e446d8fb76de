"""The frameworks that the tests of our own caches run on."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from frameworks import INSTALLED, Framework

collect_ignore_glob = [
    f"test_{name}_*.py" for name in ("torch", "mlx") if find_spec(name) is None
]


@pytest.fixture(scope="module", params=INSTALLED)
def on(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)
