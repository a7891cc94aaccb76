"""What names an engine's blocks, with SGLang's own arguments and hashes: each ingredient changes the digest, and what
only says where and how large an engine is does not. Golden values of SGLang's page hashes and image numbers."""

import hashlib
import inspect
import itertools
from types import SimpleNamespace

import pytest

import orbitkv
from orbitkv.sglang import compat, identity, updates
from orbitkv.sglang.errors import UnsupportedError

WEIGHTS = "sha256:" + "ab" * 32


@pytest.fixture(scope="module")
def publish(seeded):
    """Publishes SGLang's settings in this process, as an engine's does. Those of before are back at the end."""
    from sglang.srt.runtime_context import publish, restore_context, snapshot_context
    from sglang.srt.server_args import ServerArgs

    before = snapshot_context()

    def of(**more):
        settings = {
            "model_path": str(seeded),
            "device": "cpu",
            "attention_backend": "torch_native",
            "dtype": "float32",
            "page_size": 16,
            "skip_tokenizer_init": True,
        }
        publish(ServerArgs(**(settings | more)), role="test")

    yield of
    restore_context(before)


def params(kv_dtype="torch.float32", **more):
    pool = SimpleNamespace(dtype=kv_dtype)
    return SimpleNamespace(
        **{
            "page_size": 16,
            "is_eagle": False,
            "disable": False,
            "token_to_kv_pool_allocator": SimpleNamespace(get_kvcache=lambda: pool),
        }
        | more
    )


def digest(*, part=None):
    engine = compat.describe(part or params())
    return orbitkv.computation_digest(identity.computation_fields(engine, WEIGHTS, {}, replicated=False))


@pytest.fixture(scope="module")
def base(publish):
    publish()
    return digest()


ROPE = '{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'

INGREDIENTS = {
    "rope scaling": {"json_model_override_args": ROPE},
    "resolved configuration": {"json_model_override_args": '{"rms_norm_eps": 1e-4}'},
    "dtype": {"dtype": "bfloat16"},
    "cache dtype": {"kv_cache_dtype": "bf16"},
    "version of the weights": {"weight_version": "2"},
    "tensor parallel": {"tp_size": 2},
    "implementation": {"model_impl": "transformers"},
    "custom loader": {"custom_weight_loader": ["x.y"]},
}


@pytest.mark.parametrize("changes", INGREDIENTS.values(), ids=INGREDIENTS.keys())
def test_an_ingredient_changes_the_digest(publish, base, changes):
    publish(**changes)
    assert digest() != base


OTHERS = {
    "tokens in the cache": {"max_total_tokens": 777},
    "memory for the cache": {"mem_fraction_static": 0.3},
    "requests at once": {"max_running_requests": 3, "chunked_prefill_size": 64, "max_prefill_tokens": 128},
    "longest prompt": {"context_length": 512},
    "address": {"host": "127.0.0.2", "port": 3},
    "name": {"served_model_name": "x"},
    "seed": {"random_seed": 7},
    "schedule": {"schedule_policy": "lpm", "disable_overlap_schedule": True, "radix_eviction_policy": "lfu"},
    "replicas": {"dp_size": 2},
    "log": {"log_level": "error", "enable_metrics": True},
    "linker": {"enable_unified_cache_external_linker": True},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_not_an_ingredient_does_not(publish, base, changes):
    publish(**changes)
    assert digest() == base


def test_each_setting_that_is_read_is_one_of_sglang_s_and_no_name_means_two(publish):
    from sglang.srt import runtime_context

    publish()
    settings = compat.Settings()
    others = {"enable_weights_cpu_backup", "disaggregation_mode"}
    read = {*compat.COMPUTING, *compat.MULTIMODAL, *compat.SETTINGS_CHECKED, *others}
    assert read - set(settings) == set(), "a name that is gone would count as not set"
    parallel = runtime_context.get_parallel()
    assert [name for name in compat.DEGREES_CHECKED if not hasattr(parallel, name)] == []

    def leaves(bag):
        return len(bag._fields) + sum(leaves(inner) for inner in bag._subs.values())

    assert sum(leaves(getattr(runtime_context, f"get_{name}")()) for name in compat.BAGS) == len(settings)


def test_the_pools_say_what_the_cache_holds(publish, base):
    publish()
    assert digest(part=params("torch.bfloat16")) != base
    assert digest(part=params(page_size=32)) != base
    assert digest(part=params(is_eagle=True)) != base, "their pages are hashed as pairs of tokens"


def test_the_rank_is_one_sglang_was_launched_with(publish, base):
    from sglang.srt.runtime_context import get_parallel

    publish(tp_size=2)
    assert compat.ranks() == compat.Ranks(tp_size=2, attn_tp_size=2)
    digests = []
    for rank in range(2):
        with get_parallel().override(tp_rank=rank, attn_tp_rank=rank):
            assert (compat.ranks().tp_rank, compat.ranks().attn_tp_rank) == (rank, rank)
            digests.append(digest())
    assert digests[0] != digests[1]


def test_a_rank_that_sglang_has_no_name_for_is_not_the_first_one(monkeypatch):
    from sglang.srt import runtime_context

    monkeypatch.setattr(runtime_context, "get_parallel", lambda: SimpleNamespace(tp_rank=1, tp_size=2))
    with pytest.raises(AttributeError, match="attn_tp_rank"):
        compat.ranks()


def test_adapters_of_the_start_are_known_by_name_folder_and_id(publish, tmp_path):
    from sglang.srt.lora.lora_registry import LoRARef
    from sglang.srt.runtime_context import get_lora

    (tmp_path / "adapter_config.json").write_text("{}")
    number = LoRARef.deterministic_id("a", str(tmp_path))
    loaded = LoRARef(lora_id=number, lora_name="a", lora_path=str(tmp_path))
    publish()
    with get_lora().override(lora_paths=[loaded]):
        assert compat.describe(params()).adapters == (("a", str(tmp_path)),)
        assert compat.adapter_ids() == [number] == [LoRARef.deterministic_id("a", str(tmp_path))]
    assert LoRARef().lora_id != LoRARef().lora_id, "of adapters that are loaded later; they are never found again"


# ---- what is refused when the cache is made -------------------------------------------------------------------------

LINKER = {"enable_unified_cache_external_linker": True}


def test_an_engine_with_a_linker_is_accepted(publish):
    publish(**LINKER)
    compat.check_supported(params())


def test_a_cache_whose_scheduler_knows_of_no_linker_is_refused(publish):
    publish()
    with pytest.raises(UnsupportedError, match="pages that were never loaded"):
        compat.check_supported(params())


@pytest.mark.parametrize("pools", ["mtp_draft_device_pools", "sidecar_draft_device_pools", "mtp_draft_mamba_pools"])
def test_drafters_with_a_pool_are_refused(publish, pools):
    publish(**LINKER)
    compat.check_supported(params(**{pools: ()}))
    with pytest.raises(UnsupportedError, match="drafter has a KV pool"):
        compat.check_supported(params(**{pools: ("pool",)}))


def test_a_cache_that_is_off_is_refused(publish):
    publish(**LINKER)
    with pytest.raises(UnsupportedError, match="--disable-radix-cache"):
        compat.check_supported(params(disable=True))


def test_images_that_callers_name_are_refused_unless_they_are_believed(publish):
    publish(**LINKER, trust_mm_content_hashes=True)
    with pytest.raises(UnsupportedError, match="trust_mm_uuids"):
        compat.check_supported(params())
    compat.check_supported(params(), trust_mm_uuids=True)


def test_models_with_an_encoder_are_refused(publish):
    from sglang.srt.runtime_context import process_model_config

    publish(**LINKER)
    model = process_model_config()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "is_encoder_decoder", True)
        with pytest.raises(UnsupportedError, match="encoder-decoder"):
            compat.check_supported(params())


def test_what_sglang_has_decided_by_itself_counts(publish):
    from sglang.srt.runtime_context import get_disagg

    publish(**LINKER)
    with (
        get_disagg().override(disaggregation_decode_retraction_backup="host_pool"),
        pytest.raises(UnsupportedError, match="host_pool"),
    ):
        compat.check_supported(params())


# ---- SGLang's hashes ------------------------------------------------------------------------------------------------


def page(tokens, prior=b""):
    return hashlib.sha256(prior + b"".join(token.to_bytes(4, "little") for token in tokens))


def seed(extra_key, salt):
    def part(value):
        data = (value or "").encode()
        return b"\0" if value is None else b"\1" + len(data).to_bytes(8, "little") + data

    return hashlib.sha256(b"sglang-cache-namespace-v1" + part(extra_key) + part(salt)).digest()


TOKENS = list(range(5, 21))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({}, "5c61d0ee38563babc17f5d12d8a3e6c1441ab7e802288ef2eedb412816c3b7ab"),
        ({"extra_key": "k"}, "7e081441e375a0e98d3e81077005f1886a9882e827b54f103bcc9e57e4101200"),
        ({"salt": "k"}, "305e9a75cdfdb87558f63e681349d9e6f680b18d7ca6c7e2256943da745208e8"),
        ({"extra_key": "k", "salt": "s"}, "b7ed759c35582706641ab83b1975cbf41925b66c1b82e94bccfebdb8bc92a39a"),
        ({"extra_key": "ä"}, "4cae9e3a14c26bbd0da54a61d9881dc8723fe7dc7ab8c399dcf89facf3b9e6d2"),
    ],
)
def test_page_hashes_are_the_ones_that_blocks_are_stored_under(names, expected):
    own = page(TOKENS, seed(names.get("extra_key"), names.get("salt")) if names else b"").hexdigest()
    assert compat.page_hash(TOKENS, **names) == own == expected


def test_a_page_of_pairs_hashes_both_tokens_of_each():
    pairs = [token for pair in itertools.pairwise(TOKENS) for token in pair]
    assert (
        compat.page_hash(TOKENS, bigram=True)
        == page(pairs).hexdigest()
        == "83d2df2132ef213f51193676ed5b2acfdaf99e185e49cbea58b99a4a459a2d68"
    )


@pytest.mark.parametrize(
    ("content", "expected"), [(1, 3_788_338_550_080_000_423), (0xFEDC_BA98_7654_3210, 3_807_635_031_061_392_321)]
)
def test_the_numbers_that_stand_for_an_image_come_from_its_content(content, expected):
    digest = hashlib.sha256(b"sglang-mm-wide-pad-v1" + content.to_bytes(8, "big")).digest()
    words = [int.from_bytes(digest[at : at + 8], "big") & ((1 << 62) - 1) for at in range(0, 32, 8)]
    numbers = compat.image_tokens(content)
    assert list(numbers) == [1_000_000 + word for word in words]
    assert numbers[0] == expected


# ---- how weights are replaced ---------------------------------------------------------------------------------------

HARMLESS = {
    "flush_cache_after_weight_update",
    "record_weight_version_after_update",  # calls record_weight_version_change
    "init_weights_update_group",
    "destroy_weights_update_group",
    "get_weights_by_name",
    "save_remote_model",
    "save_sharded_model",
}


def test_every_method_of_sglang_s_updater_is_watched_or_known_to_be_harmless():
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

    methods = {name for name, value in vars(SchedulerWeightUpdaterManager).items() if inspect.isfunction(value)}
    watched = {*updates.REPLACE_WEIGHTS, *updates.OCCUPY_MEMORY, *updates.CHECK_WEIGHTS}
    assert {name for name in methods if not name.startswith("_")} == watched | HARMLESS


def test_every_method_of_sglang_s_scheduler_about_weights_and_adapters_is_watched_or_known_to_be_harmless():
    from sglang.srt.managers.scheduler import Scheduler

    methods = {name for name in dir(Scheduler) if not name.startswith("_") and ("weight" in name or "lora" in name)}
    assert methods == {*updates.LOAD_ADAPTER, *updates.NAME_VERSION} | {
        "can_schedule_lora_req",
        "handle_update_weight_version",  # calls record_weight_version_change
        "init_kv_event_lora_names",
        "init_lora_drainer",
        "init_lora_overlap_loader",
        "init_weight_updater",
        "init_weights_send_group_for_remote_instance",
        "send_weights_to_remote_instance",
        "unload_lora_adapter",
    }
