"""docs/sglang.md names every option and what is refused, and every test with an engine or SGLang's own cache."""

from pathlib import Path

import pytest

from harness.guide import Guide
from orbitkv.sglang import compat, options

HERE = Path(__file__).resolve()
GUIDE = Guide(HERE.parents[2] / "docs" / "sglang.md")


def test_every_option_has_a_line():
    lines = GUIDE.first_cells("Options")
    assert tuple(sorted(set(lines) - {"option"})) == options.KNOWN_KEYS


@pytest.mark.parametrize("variable", options.VARIABLES)
def test_every_variable_is_named(variable):
    assert f"`{variable}`" in GUIDE.section("Options")


@pytest.mark.parametrize("name", [*compat.UNKNOWN_CACHES, *compat.UNKNOWN_DEGREES, compat.RETRACTION])
def test_every_refused_setting_has_a_line(name):
    assert f"`{compat.option(name)}" in GUIDE.section("What is refused")


def test_every_test_that_is_named_is_there_and_no_real_engine_is_left_out():
    GUIDE.check_tests(HERE.parent, ("start_engine", "cache_tree", "SglangServer"), HERE)
