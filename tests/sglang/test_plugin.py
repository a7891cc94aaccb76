"""The two flags of the command line, as SGLang itself resolves its arguments, and what is refused by then."""

import subprocess
import sys

import pytest

from orbitkv.sglang import compat, plugin
from orbitkv.sglang.errors import UnsupportedError
from orbitkv.sglang.options import OptionError

BOTH = {"radix_cache_backend": "orbitkv", "enable_unified_cache_external_linker": True}
DYNAMIC = {
    "enable_unified_cache_external_linker": True,
    "unified_cache_external_linker_backend": "dynamic",
    "unified_cache_external_linker_config": plugin.linker_config(),
}


@pytest.fixture(scope="module")
def resolve(seeded):
    """What SGLang makes of arguments, with our plugin loaded as SGLang loads it."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import ServerArgs

    plugin.register()
    plugin.register()

    def of(**more):
        settings = {"model_path": str(seeded), "device": "cpu", "attention_backend": "torch_native", "page_size": 16}
        arguments = ServerArgs(**(settings | more))
        arguments.resolve_once()
        return resolving_view(arguments)

    return of


@pytest.fixture(autouse=True)
def own_socket(monkeypatch):
    monkeypatch.setenv("ORBITKV_SGLANG_ENDPOINT", "unix:///x.sock")


def linker_of(view):
    return (
        view.radix_cache_backend,
        view.enable_unified_cache_external_linker,
        view.unified_cache_external_linker_backend,
        view.unified_cache_external_linker_config,
    )


def test_the_two_flags_become_sglang_s_own_cache_with_our_linker(resolve):
    ours = {"linker": "OrbitKVLinker", "linker_module_path": "orbitkv.sglang"}
    assert linker_of(resolve(**BOTH)) == (None, True, "dynamic", ours)
    assert linker_of(resolve(**DYNAMIC)) == (None, True, "dynamic", ours)


def test_the_linker_s_configuration_is_ours_then(resolve):
    view = resolve(**BOTH, unified_cache_external_linker_config={"mode": "save_only"})
    assert view.unified_cache_external_linker_config["linker_extra_config"] == {"mode": "save_only"}
    with pytest.raises(OptionError, match="unknown option 'mod'"):
        resolve(**BOTH, unified_cache_external_linker_config={"mod": "save_only"})


def test_one_flag_alone_is_refused(resolve):
    """SGLang accepts it, and computes with pages that nobody has loaded."""
    with pytest.raises(UnsupportedError, match="needs --enable-unified-cache-external-linker"):
        resolve(radix_cache_backend="orbitkv")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
        ({"hicache_storage_backend": "file"}, "--hicache-storage-backend"),
        ({"enable_lmcache": True}, "--enable-lmcache"),
        ({"enable_linker_mla_dedup": True}, "--enable-linker-mla-dedup"),
        ({"pp_size": 2}, "pipeline parallelism"),
        ({"nnodes": 2, "tp_size": 2, "dist_init_addr": "127.0.0.1:9"}, "several hosts"),
        ({"disaggregation_mode": "decode", "disaggregation_decode_enable_radix_cache": True,
          "disaggregation_decode_retraction_backup": "host_pool"}, "host_pool"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", [BOTH, DYNAMIC], ids=["both flags", "dynamic"])
def test_engines_that_cannot_be_cached_are_refused_before_a_model_is_loaded(resolve, way, more, message):
    with pytest.raises(UnsupportedError, match=message):
        resolve(**way, **more)


@pytest.mark.parametrize("other", [DYNAMIC, {"unified_cache_external_linker_backend": "mori"}], ids=["dynamic", "mori"])
def test_two_linkers_at_once_are_refused(resolve, other):
    named = f"orbitkv or --unified-cache-external-linker-backend {other['unified_cache_external_linker_backend']}, not"
    with pytest.raises(UnsupportedError, match=named):
        resolve(**(other | BOTH))


def test_the_default_that_another_linker_is_not_named_by_is_sglang_s(resolve):
    assert resolve().unified_cache_external_linker_backend == plugin.DEFAULT_BACKEND


@pytest.mark.parametrize("way", [BOTH, DYNAMIC], ids=["both flags", "dynamic"])
def test_prefill_and_decode_engines_are_accepted_and_a_decode_engine_without_a_cache_is_not(resolve, way):
    assert linker_of(resolve(**way, disaggregation_mode="prefill"))[1:3] == (True, "dynamic")
    decode = {"disaggregation_mode": "decode"}
    cached = resolve(**way, **decode, disaggregation_decode_enable_radix_cache=True)
    assert linker_of(cached)[1:3] == (True, "dynamic")
    with pytest.raises(UnsupportedError, match="--disaggregation-decode-enable-radix-cache"):
        resolve(**way, **decode)


@pytest.mark.parametrize("way", [BOTH, DYNAMIC], ids=["both flags", "dynamic"])
def test_an_endpoint_that_is_no_socket_is_refused(resolve, way, monkeypatch):
    monkeypatch.setenv("ORBITKV_SGLANG_ENDPOINT", "tcp://host:1")
    with pytest.raises(OptionError, match="unix:///path"):
        resolve(**way)


OTHERS = {
    "nothing": {},
    "another linker": {
        "enable_unified_cache_external_linker": True,
        "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": {"linker": "Other", "linker_module_path": "their.module"},
    },
    "Mooncake's linker": {"enable_unified_cache_external_linker": True},
    "pipeline parallelism": {"pp_size": 2},
    "no cache": {"disable_radix_cache": True},
}


@pytest.mark.parametrize("arguments", OTHERS.values(), ids=OTHERS)
def test_an_engine_that_does_not_ask_for_us_is_left_alone(resolve, arguments, monkeypatch):
    monkeypatch.setenv("ORBITKV_SGLANG_ENDPOINT", "nonsense")
    monkeypatch.setattr(compat, "check_settings", lambda *_: pytest.fail("not ours to check"))
    view = resolve(**arguments)
    assert view.radix_cache_backend is None
    config = arguments.get("unified_cache_external_linker_config")
    assert view.unified_cache_external_linker_config == config


def test_sglang_s_own_checks_still_run(resolve):
    with pytest.raises(ValueError, match="requires the default UnifiedRadixCache"):
        resolve(radix_cache_backend="theirs", enable_unified_cache_external_linker=True)


def test_a_name_that_was_not_resolved_makes_no_cache():
    from sglang.srt.arg_groups import resolution_hooks
    from sglang.srt.mem_cache import registry

    plugin.register()
    plugin.register()
    assert len(resolution_hooks._HOOKS[plugin.STEP]) == 1
    factory = registry.get_radix_cache_factory("orbitkv")
    with pytest.raises(UnsupportedError, match="was not resolved"):
        factory(None)


# ---- processes ------------------------------------------------------------------------------------------------------


def python(code, **more):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False, **more
    )


def test_sglang_finds_the_plugin_and_it_costs_nothing_where_nobody_asks_for_it():
    """It imports none of our modules but its own, and says nothing."""
    done = python(
        "import logging, sys\n"
        "from sglang.srt.plugins import load_plugins_by_group\n"
        "logging.basicConfig(level=logging.WARNING)\n"
        "before = set(sys.modules)\n"
        "plugins = load_plugins_by_group('sglang.srt.plugins')\n"
        "plugins['orbitkv'][0]()\n"
        "from sglang.srt.arg_groups.resolution_hooks import _HOOKS\n"
        "assert len(_HOOKS['handle_hicache']) == 1\n"
        "more = sorted(name for name in set(sys.modules) - before if name.startswith('orbitkv'))\n"
        "print(more)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(
        ["orbitkv", "orbitkv._native", "orbitkv.layout", "orbitkv.options", "orbitkv.sglang", "orbitkv.sglang.errors",
         "orbitkv.sglang.plugin", "orbitkv.weights"]
    )  # fmt: skip
    assert "orbitkv" not in done.stderr.lower()


def test_an_sglang_without_resolution_hooks_is_left_alone():
    done = python(
        "import sys\n"
        "sys.modules['sglang.srt.arg_groups.resolution_hooks'] = None\n"
        "from orbitkv.sglang import plugin\n"
        "plugin.register()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
