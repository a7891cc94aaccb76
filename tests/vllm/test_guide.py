"""docs/vllm.md names every option, reason and metric, and nothing that is not there."""

import re
from pathlib import Path

import pytest

from harness.guide import Guide
from orbitkv.vllm import key_domains, options, reasons, stats

HERE = Path(__file__).resolve()
GUIDE = Guide(HERE.parents[2] / "docs" / "vllm.md")
section, first_cells = GUIDE.section, GUIDE.first_cells


def test_every_option_has_a_line():
    lines = re.findall(r"^\| `(orbitkv\.[a-z_]+)` \|", section("Options"), re.MULTILINE)
    assert tuple(sorted(lines)) == options.KNOWN_KEYS


def test_every_reason_has_a_line():
    told = set(first_cells("Why there was no hit"))
    names = {name for name in vars(reasons) if name.isupper()} - {"LABEL", "MISSES", "RESTORED_TOKENS"}
    own = {value for name in names if isinstance(value := getattr(reasons, name), str)}
    keys = {value for name, value in vars(key_domains).items() if name.isupper() and isinstance(value, str)}
    assert own | keys | set(reasons.WORDS.values()) == told - {"reason"}


@pytest.mark.parametrize("name", [*stats.COUNTERS, *stats.LABELLED])
def test_every_metric_has_a_line(name):
    assert f"`vllm:orbitkv_{name}_total" in section("Metrics")


def test_every_test_that_is_named_is_there_and_no_real_engine_is_left_out():
    GUIDE.check_tests(HERE.parent, ("start_engine",), HERE)
