"""What the digests that name an engine's blocks depend on, ingredient by ingredient."""

from dataclasses import replace

import pytest
from stand_ins import ENGINE, Format, Pool, engine

import orbitkv
from orbitkv.identity import describe, representation_digest
from orbitkv.sglang import identity
from orbitkv.sglang.compat import Engine, Ranks

WEIGHTS = "sha256:" + "ab" * 32
TWO = Ranks(tp_rank=1, tp_size=2, attn_tp_rank=1, attn_tp_size=2)


def digest(engine=ENGINE, weights=WEIGHTS, adapters=None, replicated=False, epoch=b""):
    fields = identity.computation_fields(engine, weights, adapters or {}, replicated=replicated, epoch=epoch)
    return orbitkv.computation_digest(fields)


INGREDIENTS = {
    "version": "0.5.24",
    "config": '{"layers":3}',
    "architecture": '["Other"]',
    "rope_scaling": '{"factor":2}',
    "sliding_window": 32,
    "long_rope_length": 4096,
    "dtype": "bfloat16",
    "quantization": "fp8",
    "cache_dtype": "fp8_e4m3/float8_e4m3fn",
    "settings": {"weight_version": "2", "attention_backend": "torch_native"},
    "hash_algorithm": "sha256 chain of token pairs",
    "probe": b"other",
    "page_tokens": 32,
    "multimodal": True,
}
ELSEWHERE = {
    "model_folder": "in the weights",
    "load_format": "in the weights",
    "adapters": "their contents",
    "quantization_parameters": "its content",
    "ranks": "below",
    "attention_backend": "of the representation",
    "instruction_set": "of the representation",
}


def test_no_ingredient_is_left_out():
    assert set(Engine.__dataclass_fields__) == INGREDIENTS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", INGREDIENTS)
def test_an_ingredient_changes_the_digest(name):
    assert digest(engine(**{name: INGREDIENTS[name]})) != digest()


def test_weights_and_epoch_change_the_digest():
    assert len({digest(), digest(weights="model_id:x"), digest(epoch=b"1"), digest(epoch=b"2")}) == 4


def test_where_the_model_lies_does_not_change_it():
    assert digest(engine(model_folder="/elsewhere", load_format="safetensors")) == digest()


@pytest.mark.parametrize("name", [name for name in Ranks.__dataclass_fields__ if name != "tp_rank"])
def test_degrees_and_the_rank_change_the_digest(name):
    ranks = Ranks(**{name: getattr(Ranks, name) + 1})
    assert digest(engine(ranks=ranks)) != digest()


def test_replicas_of_attention_data_parallelism_share():
    """Four ranks in two replicas: the rank among all of them says which replica it is."""
    ranks = [Ranks(tp_rank=r, tp_size=4, attn_tp_rank=r % 2, attn_tp_size=2, attn_dp_size=2) for r in range(4)]
    digests = [digest(engine(ranks=one)) for one in ranks]
    assert digests[0] == digests[2] != digests[1] == digests[3]


def test_ranks_with_equal_bytes_have_equal_digests_but_not_across_parts_of_the_tokens():
    same = [digest(engine(ranks=replace(TWO, tp_rank=r, attn_tp_rank=r)), replicated=True) for r in range(2)]
    assert same[0] == same[1]
    parts = [digest(engine(ranks=Ranks(attn_cp_rank=r, attn_cp_size=2)), replicated=True) for r in range(2)]
    assert parts[0] != parts[1]
    assert [replace(TWO, attn_tp_rank=r).writes(True) for r in range(2)] == [True, False]
    assert [replace(TWO, attn_tp_rank=r).writes(False) for r in range(2)] == [True, True]


def write_adapter(folder, config="{}", weights=b"w"):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(config)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def adapter_digest(folder, name="a"):
    loaded = engine(adapters=((name, str(folder)),))
    return digest(loaded, adapters=identity.adapters(loaded, orbitkv.CancelToken()))


def test_the_content_of_adapters_changes_the_digest(tmp_path):
    """SGLang's page hashes name an adapter of the start by its name and path."""
    base = adapter_digest(write_adapter(tmp_path / "a"))
    assert base == adapter_digest(tmp_path / "a")
    assert base != digest()
    assert adapter_digest(write_adapter(tmp_path / "a", weights=b"v")) != base
    assert adapter_digest(write_adapter(tmp_path / "a", config='{"r": 2}')) != base
    assert adapter_digest(write_adapter(tmp_path / "a")) == base
    assert adapter_digest(tmp_path / "a", name="b") != base


def test_an_adapter_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(orbitkv.Error):
        adapter_digest(tmp_path / "none")


def test_the_files_of_the_processor_change_the_digest(tmp_path):
    folder = engine(model_folder=str(tmp_path), multimodal=True)
    base = digest(folder)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    changed = digest(folder)
    (tmp_path / "preprocessor_config.json").write_text('{"size": 2}')
    assert len({base, changed, digest(folder)}) == 3
    assert digest(replace(folder, multimodal=False)) == digest(engine(model_folder="/elsewhere"))


def test_the_file_of_scales_changes_the_digest(tmp_path):
    scales = tmp_path / "scales.json"
    scales.write_text("1")
    base = digest(engine(quantization_parameters=str(scales)))
    scales.write_text("2")
    assert len({base, digest(engine(quantization_parameters=str(scales))), digest()}) == 3


def test_the_weights_are_identified_by_content_or_by_the_name_that_is_given(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"w")
    cancel = orbitkv.CancelToken()
    assert identity.weights(engine(model_folder=str(tmp_path)), "", cancel).startswith("sha256:")
    with pytest.raises(orbitkv.Error, match="model_id"):
        identity.weights(engine(model_folder=str(tmp_path), load_format="dummy"), "", cancel)
    assert "mine" in identity.weights(engine(load_format="dummy"), "mine", cancel)


# ---- pages ----------------------------------------------------------------------------------------------------------


POOL = Pool()


def pages(pool=POOL, engine=ENGINE):
    return representation_digest([identity.representation_fields(engine, pool)])


LAYER = orbitkv.Layer(0, 4096, 4096, 8)
PAGES = {
    "class": Pool(pool_class="MLATokenToKVPool"),
    "rule": Pool(rule="sliding_window"),
    "shape": Pool(formats=(Format((16, 4, 16)), Format((16, 4, 16)))),
    "dtype": Pool(formats=(Format(dtype="uint8"), Format(dtype="uint8"))),
    "other values than keys": Pool(formats=(Format(), Format((16, 1, 32)))),
    "number of buffers": Pool(formats=(Format(),) * 4),
    "number of pieces": Pool(layers=(LAYER,) * 4),
    "bytes": Pool(layers=(orbitkv.Layer(0, 2048, 2048, 8),) * 2),
}


@pytest.mark.parametrize("pool", PAGES.values(), ids=PAGES)
def test_what_is_in_a_page_changes_the_representation(pool):
    assert pages(pool) != pages()


@pytest.mark.parametrize("name", ["attention_backend", "instruction_set"])
def test_what_fills_a_page_changes_the_representation(name):
    assert pages(engine=engine(**{name: "other"})) != pages()


def test_where_pages_lie_and_how_many_there_are_does_not():
    assert pages(Pool(layers=(orbitkv.Layer(1 << 20, 1 << 16, 4096, 999),) * 2)) == pages()


def test_the_log_line_has_what_two_engines_differ_by_and_no_long_text():
    fields = identity.computation_fields(ENGINE, WEIGHTS, {}, replicated=False)
    line = describe(fields)
    assert f"weights={WEIGHTS} part:tp 0/1 cp 0/1" in line
    assert "page_tokens" not in line and "block_tokens=16" in line
    assert fields["model_config"] not in line
    for name, value in fields.items():
        other = value + b"other" if isinstance(value, bytes) else f"{value}other"
        assert describe(fields | {name: other}) != line, name
