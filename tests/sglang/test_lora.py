"""Real engines with a LoRA adapter: its pages are of its content, and those of the model without it are others."""

import pytest
from engine import details, near, tokens

from models import write_adapter

PROMPTS = [tokens(100, 1), tokens(300, 4)]
NOTHING, CACHED = [(0, 0), (0, 0)], [(0, 96), (0, 288)]
LORA = {"enable_lora": True, "lora_backend": "torch_native", "max_loras_per_batch": 2}


@pytest.fixture(scope="module")
def start(start_engine, linker):
    def begin(folder):
        engine = start_engine(linker, lora_paths=[f"tuned={folder}"], **LORA)
        assert engine.wait_up()
        return engine

    return begin


def test_an_adapter_is_its_content(start, start_engine, folder):
    one, two, place = folder / "one", folder / "two", folder / "adapter"
    for target, seed in ((one, 1), (two, 2), (place, 1)):
        write_adapter(target, seed)
    plain = start_engine(lora_paths=[f"{each.name}={each}" for each in (one, two)], **LORA)
    base, right, other = (plain.each(PROMPTS, lora=name) for name in (None, "one", "two"))
    plain.close()
    for answers, others in ((base, right), (right, other), (base, other)):
        assert all(mine["tokens"] != theirs["tokens"] for mine, theirs in zip(answers, others, strict=True))

    def answers(engine, expected, lora, found):
        """Of an engine whose own cache is empty."""
        engine.evict()
        got = engine.each(PROMPTS, lora=lora)
        assert details(got) == found
        assert near(got, expected)

    first = start(place)
    answers(first, base, None, NOTHING)
    answers(first, right, "tuned", NOTHING)
    answers(first, base, None, CACHED)
    answers(first, right, "tuned", CACHED)
    first.settle()
    first.kill()

    # The same name and folder, other files: what SGLang hashes is the same.
    write_adapter(place, 2)
    changed = start(place)
    answers(changed, other, "tuned", NOTHING)
    answers(changed, other, "tuned", CACHED)
    changed.close()

    write_adapter(place, 1)
    again = start(place)
    answers(again, right, "tuned", CACHED)
    answers(again, base, None, CACHED)
    assert "/orbitkv/sglang/" not in again.log.read_text(), "no traceback of ours"
