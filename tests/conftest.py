"""Shared by all tests: scratch files lie under `_build`, and nothing asks a model hub."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / "_build" / "tmp"
SCRATCH.mkdir(parents=True, exist_ok=True)

os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SCRATCH))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
