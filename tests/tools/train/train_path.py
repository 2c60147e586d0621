"""Puts tools/train on the module path, and says what is missing of its requirements."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/train"))


def missing(*modules: str) -> str:
    """Why a test of these modules must be skipped; empty when all are there."""
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"not installed: {', '.join(absent)} (tools/train/requirements.txt)" if absent else ""
