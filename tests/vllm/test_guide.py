"""docs/vllm.md names every option, reason and metric, and nothing that is not there."""

import re
from pathlib import Path

import pytest

from orbitkv.vllm import key_domains, options, reasons, stats

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "vllm.md").read_text()


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(text):
    return re.findall(r"^\| `?([^|`]+?)`? \|", text, re.MULTILINE)


def test_every_option_has_a_line():
    lines = re.findall(r"^\| `(orbitkv\.[a-z_]+)` \|", section("Options"), re.MULTILINE)
    assert tuple(sorted(lines)) == options.KNOWN_KEYS


def test_every_reason_has_a_line():
    told = set(first_cells(section("Why there was no hit")))
    names = {name for name in vars(reasons) if name.isupper()} - {"LABEL", "MISSES", "RESTORED_TOKENS"}
    own = {value for name in names if isinstance(value := getattr(reasons, name), str)}
    keys = {value for name, value in vars(key_domains).items() if name.isupper() and isinstance(value, str)}
    assert own | keys | set(reasons.WORDS.values()) == told - {"reason"}


@pytest.mark.parametrize("name", [*stats.COUNTERS, *stats.LABELLED])
def test_every_metric_has_a_line(name):
    assert f"`vllm:orbitkv_{name}_total" in section("Metrics")


def test_every_test_that_is_named_is_there_and_no_real_engine_is_left_out():
    folder = Path(__file__).parent
    named = set(re.findall(r"`(test_\w+\.py)`", section("What is tested")))
    engines = {path.name for path in folder.glob("test_*.py") if "start_engine" in path.read_text()}
    assert engines - {Path(__file__).name} <= named
    assert named <= {path.name for path in folder.glob("test_*.py")}
