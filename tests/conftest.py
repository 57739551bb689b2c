"""What several tests need."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real captures that lie beside the repository; tests that need them skip without them."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no real captures at ../shared/data beside the repository")
    return path
