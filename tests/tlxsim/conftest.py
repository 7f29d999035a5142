"""The simulator compiles kernels, which Triton's interpreter replaces: its tests run in a process without it."""

import os

import pytest


def pytest_collection_modifyitems(items):
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        for item in items:
            if "tlxsim" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="run with TRITON_INTERPRET=0, as make test does"))
