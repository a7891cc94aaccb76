"""What can happen to a request and to its engine, each against an engine without the connector.

Where both compute the same tokens in the same steps, tokens and logprobs are exactly equal; where only the batches
differ, logprobs differ in their last digits.
"""

import os
import signal
from pathlib import Path

import pytest
from engine import cached, near, same, tokens

from harness.manager import Manager
from harness.processes import wait_until

# Prompts of this length are computed in one step.
LONG = {"max_model_len": 4096, "max_num_batched_tokens": 4096}


@pytest.fixture(scope="module")
def plain(start_engine):
    return start_engine(None, **LONG)


@pytest.fixture(scope="module")
def engine(start_engine, options):
    started = start_engine(options)
    assert started.wait_up()
    return started


@pytest.fixture
def reference(plain):
    """Runs prompts one by one in the plain engine: the second time they come out of its own cache."""

    def run(prompts, n=8, **more):
        assert plain.reset()
        cold = [plain.run([prompt], n=n, **more)[0] for prompt in prompts]
        warm = [plain.run([prompt], n=n, **more)[0] for prompt in prompts]
        return cold, warm

    return run


def store(engine, prompts, **more):
    """They are in the Manager after this, and not in the engine's own cache."""
    outputs = [engine.run([prompt], **more)[0] for prompt in prompts]
    engine.settle()
    assert engine.reset()
    return outputs


# ---- where a request ends -------------------------------------------------------------------------------------------


@pytest.mark.each_vllm
@pytest.mark.parametrize("n", [4, 5, 6], ids=["partial", "full", "one over"])
def test_a_finish_around_the_end_of_a_block(plain, clean, reference, n):
    """Of 60 tokens and the answer all but the last token are in the cache: 63, 64 and 65 of them."""
    prompt = tokens(60, 200 + n)
    (cold,), _ = reference([prompt], n)
    (answer,) = store(clean, [prompt], n=n)
    assert same([answer], [cold])
    follow_up = prompt + answer["tokens"] + tokens(40, 210 + n)
    assert plain.reset()
    plain.run([prompt], n=n)
    (expected,) = plain.run([follow_up])
    (restored,) = clean.run([follow_up])
    assert restored["cached"] == expected["cached"] == (60 + n - 1) // 32 * 32
    assert same([restored], [expected])


def test_longer_and_shorter_prompts_with_the_same_beginning(plain, clean):
    prompt = tokens(300, 220)
    store(clean, [prompt])
    others = [prompt + tokens(90, 221), prompt[:200], prompt[:150] + tokens(60, 222), prompt[:257]]
    for other, hit in zip(others, [288, 192, 128, 256], strict=True):
        assert plain.reset()
        plain.run([prompt])
        (expected,) = plain.run([other])
        clean.settle()
        assert clean.reset()
        (restored,) = clean.run([other])
        assert restored["cached"] == expected["cached"] == hit
        assert same([restored], [expected])


def test_a_long_answer_is_saved_while_it_grows(clean, reference):
    prompt = tokens(40, 225)
    _, (warm,) = reference([prompt], 150)
    stored = clean.state()["counters"]["saved_blocks"]
    clean.add(req_id="long", prompt=prompt, n=150)
    grown = [clean.step(count=35)["counters"]["saved_blocks"] - stored for _ in range(4)]
    assert grown == sorted(set(grown)) and grown[0] >= 1, "some more after each 35 tokens"
    (answer,) = clean.answers(req_ids=["long"])
    assert same([answer], [warm], logprobs=False)


# ---- several at once ------------------------------------------------------------------------------------------------


@pytest.mark.each_vllm
def test_equal_prompts_at_once_load_once(clean, reference):
    prompt = tokens(300, 230)
    _, (warm,) = reference([prompt])
    store(clean, [prompt])
    loads = clean.state()["counters"]["loads"]
    outputs = clean.run([prompt] * 4)
    assert cached(outputs) == [288] * 4
    assert near(outputs, [warm] * 4)
    assert clean.state()["counters"]["loads"] == loads + 1, "the others found it in the engine's own cache"


def test_several_answers_to_one_prompt(plain, clean):
    prompt = tokens(200, 235)
    assert plain.reset()
    plain.run([prompt])
    (expected,) = plain.run([prompt], samples=3)
    store(clean, [prompt])
    (restored,) = clean.run([prompt], samples=3)
    assert restored["cached"] == 192
    assert [sample[0] for sample in restored["samples"]] == [sample[0] for sample in expected["samples"]]
    assert len({tuple(sample[0]) for sample in restored["samples"]}) == 3


def test_preemptions_while_loads_are_under_way(start_engine, options, engine, plain):
    prompts = [tokens(60, 240 + i) for i in range(5)]
    assert plain.reset()
    expected = plain.run(prompts, n=80)
    engine.settle()
    store(engine, prompts, n=80)
    small = start_engine(options, num_gpu_blocks_override=14, max_model_len=256)
    assert small.wait_up()
    small.slow_loads(steps=6)
    outputs = small.run(prompts, n=80)
    assert near(outputs, expected)
    assert small.metrics()["vllm:num_preemptions"] > 0
    state = small.settle()
    assert state["counters"]["loads"] > len(prompts), "preempted requests were looked up and loaded again"
    assert [state[key] for key in ("jobs", "watched", "loading", "tracked", "worker_loads", "worker_saves")] == [0] * 6
    small.close()


# ---- aborts ---------------------------------------------------------------------------------------------------------


def test_abort_in_a_look_up_and_in_a_save(manager, clean, reference):
    """The Manager stands still, so both are under way."""
    found, saving = tokens(300, 250), tokens(200, 251)
    _, warm = reference([found, saving])
    store(clean, [found])
    other = tokens(500, 252)
    manager.suspend()
    try:
        clean.add(req_id="s", prompt=saving, wishes={"orbitkv.load": False})
        assert clean.step()["jobs"] == 1
        clean.add(req_id="l", prompt=found)
        clean.step()
        assert clean.statuses() == ["RUNNING", "WAITING"]
        clean.abort(req_id="l")
        state = clean.abort(req_id="s")
        assert (state["tracked"], state["jobs"]) == (0, 1)
        # The freed blocks are filled by another request while the save of the aborted one still waits.
        clean.add(req_id="o", prompt=other, wishes={"orbitkv.load": False, "orbitkv.save": False})
        clean.step()
        clean.answers(req_ids=["o"])
    finally:
        manager.signal(signal.SIGCONT)
    assert wait_until(lambda: clean.state()["client"] == "up", 20)
    clean.settle()
    assert clean.reset()
    outputs = [clean.run([prompt])[0] for prompt in (found, saving)]
    assert outputs[0]["cached"] == 288
    assert near(outputs, warm)


# ---- what is saved --------------------------------------------------------------------------------------------------


def test_a_request_says_what_is_saved_and_whether_it_loads(clean, reference):
    prompt = tokens(100, 260)
    (cold,), (warm,) = reference([prompt], 40)

    def stored_by(save):
        """Tokens that a later engine finds of the prompt with its answer."""
        run = {"n": 40, "wishes": {"orbitkv.save": save, "orbitkv.load": False}}
        (output,) = clean.run([prompt], salt=str(save), **run)
        assert same([output], [cold], logprobs=True)
        clean.settle()
        assert clean.reset()
        (again,) = clean.run([prompt + output["tokens"]], salt=str(save), wishes={"orbitkv.save": False})
        clean.settle()
        assert clean.reset()
        return again["cached"]

    assert [stored_by(save) for save in (False, "seen_twice", "prompt", "all")] == [0, 0, 96, 128]
    assert stored_by("seen_twice") == 128, "now another request has had it"
    (restored,) = clean.run([prompt], n=40, salt="all")
    assert restored["cached"] == 96
    assert same([restored], [warm])
    assert clean.reset()
    (computed,) = clean.run([prompt], n=40, salt="all", wishes={"orbitkv.load": False})
    assert computed["cached"] == 0
    assert same([computed], [cold])


def test_a_manager_without_room_costs_saves_and_nothing_else(start_engine, options, folder, plain):
    """Its pool has not quite the room for one of the long prompts; the short one is none to be saved."""
    little = Manager(folder / "little" / "manager.sock", "2MiB").start()
    try:
        small = {"orbitkv.bootstrap_socket": str(little.socket), "orbitkv.save_min_tokens": 64}
        engine = start_engine(options | small, **LONG)
        assert engine.wait_up()
        prompts = [tokens(3000, 270), tokens(3000, 271), tokens(50, 279)]
        assert plain.reset()
        expected = [plain.run([prompt])[0] for prompt in prompts]
        outputs = [engine.run([prompt])[0] for prompt in prompts]
        assert same(outputs, expected)
        state = engine.settle()
        counters = state["counters"]
        assert counters["unsaved_blocks"] > 0, "not now"
        assert counters["saved_blocks"] + counters["unsaved_blocks"] == 2 * 93
        assert (state["jobs"], state["worker_saves"], state["watched"]) == (0, 0, 0)
        engine.close()
    finally:
        little.close()


# ---- pauses, resets, ends -------------------------------------------------------------------------------------------


@pytest.mark.each_vllm
def test_a_pause_in_the_middle_of_a_load_and_of_an_answer(clean, reference):
    prompts = [tokens(300, 280), tokens(90, 281)]
    cold, warm = reference(prompts, 30)
    store(clean, prompts[:1], n=30)
    clean.hold_loads(hold=True)
    clean.add(req_id="a", prompt=prompts[1], n=30)
    clean.add(req_id="b", prompt=prompts[0], n=30)
    assert clean.step_until(statuses=["RUNNING", "WAITING_FOR_REMOTE_KVS"])
    assert clean.pause(mode="keep") is False
    clean.hold_loads(hold=False)
    clean.step(count=3)
    assert len(clean.statuses()) == 2
    clean.resume()
    outputs = clean.answers(req_ids=["a", "b"])
    assert outputs[1]["cached"] == 288
    assert near(outputs, [cold[1], warm[0]])


@pytest.mark.each_vllm
@pytest.mark.parametrize("moved", [False, True], ids=["same place", "elsewhere"])
def test_pages_that_went_away_and_came_back(clean, reference, moved):
    first, second = tokens(300, 290 + moved), tokens(200, 295 + moved)
    _, warm = reference([first, second])
    store(clean, [first])
    clean.add(req_id="s", prompt=second)
    clean.step()
    assert clean.unregister() == {"client": False, "loads": 0, "saves": 0}
    assert clean.unregister()["client"] is False
    assert set(clean.restore(moved=moved)) == {not moved}
    assert clean.wait_up()
    clean.answers(req_ids=["s"])
    clean.settle()
    assert clean.reset()
    outputs = [clean.run([prompt])[0] for prompt in (first, second)]
    assert outputs[0]["cached"] == 288
    assert outputs[1]["cached"] == 192, "its saves were under way and had the time that they need"
    assert same(outputs, warm)


def test_a_reset_of_all_caches_with_a_request_in_its_load(start_engine, options, engine, reference):
    prompts = [tokens(300, 300), tokens(90, 301)]
    cold, _ = reference(prompts, 30)
    engine.settle()
    store(engine, prompts[:1], n=30)
    other = start_engine(options)
    assert other.wait_up()
    other.add(req_id="a", prompt=prompts[1], n=30)
    other.step(count=2)
    other.add(req_id="b", prompt=prompts[0], n=30)
    other.hold_loads(hold=True)
    assert other.step_until(statuses=["RUNNING", "WAITING_FOR_REMOTE_KVS"])
    other.hold_loads(hold=False)
    other.reset_all()
    outputs = other.answers(req_ids=["a", "b"])
    assert near(outputs, [cold[1], cold[0]])
    state = other.settle()
    assert [state[key] for key in ("jobs", "loading", "tracked", "worker_loads", "worker_saves")] == [0] * 5
    other.close()


def test_an_engine_without_a_cache_of_its_own_and_saves_that_wait_when_it_ends(
    start_engine, options, engine, reference
):
    known, prompts = tokens(300, 309), [tokens(500, 310 + i) for i in range(4)]
    _, (known_warm, *warm) = reference([known, *prompts])
    engine.settle()
    store(engine, [known])
    ending = start_engine(options, enable_prefix_caching=False)
    assert ending.wait_up()
    outputs = [ending.run([known])[0], *ending.run([known] * 2)]
    assert cached(outputs) == [288] * 3
    assert same(outputs[:1], [known_warm]) and near(outputs, [known_warm] * 3)
    assert ending.settle()["counters"]["loads"] == 3, "each for itself: none finds what another has loaded"
    ending.hold_saves()
    for number, prompt in enumerate(prompts):
        ending.add(req_id=str(number), prompt=prompt, n=1)
    ending.answers(req_ids=[str(number) for number in range(len(prompts))])
    assert ending.state()["jobs"] > 0
    ending.close()
    assert ending.process.returncode == 0
    assert "saves are on their way" in ending.log.read_text()
    engine.settle()
    assert engine.reset()
    restored = [engine.run([prompt])[0] for prompt in prompts]
    assert cached(restored) == [480] * len(prompts)
    assert same(restored, warm)


# ---- loads that fail ------------------------------------------------------------------------------------------------


def scribble(manager):
    """Changes bytes all over the Manager's pool, as broken memory would."""
    for entry in Path(f"/proc/{manager.pid}/fd").iterdir():
        target = str(entry.readlink())
        if "orbitkv" not in target or "pool" not in target:
            continue
        with entry.open("r+b", buffering=0) as pool:
            for offset in range(0, os.fstat(pool.fileno()).st_size, 4096):
                pool.seek(offset + 1000)
                pool.write(b"\xa5" * 8)
        return True
    return False


def test_damaged_memory_and_a_manager_that_dies_in_a_load(start_engine, options, folder, reference):
    frail = Manager(folder / "frail" / "manager.sock", "64MiB").start()
    prompt = tokens(300, 320)
    (cold,), (warm,) = reference([prompt])
    try:
        engine = start_engine(
            options
            | {
                "orbitkv.bootstrap_socket": str(frail.socket),
                "policy": "fail",
                "orbitkv.load_with_fail_policy": True,
            }
        )
        assert engine.wait_up()
        store(engine, [prompt])
        assert scribble(frail)
        (failed,) = engine.run([prompt])
        assert failed["reason"] == "error"
        (computed,) = engine.run([prompt])
        assert computed["cached"] == 0, "what was damaged is not offered again"
        assert same([computed], [cold])
        engine.settle()
        assert engine.reset()
        (restored,) = engine.run([prompt])
        assert restored["cached"] == 288, "stored anew"
        assert same([restored], [warm])
        engine.settle()
        assert engine.reset()
        engine.kill_at_load(pid=frail.pid)
        (failed,) = engine.run([prompt])
        assert failed["reason"] == "error"
        (computed,) = engine.run([prompt])
        assert same([computed], [cold])
        engine.close()

        frail.start()
        engine = start_engine(options | {"orbitkv.bootstrap_socket": str(frail.socket)})
        assert engine.wait_up()
        store(engine, [prompt])
        assert scribble(frail)
        (computed,) = engine.run([prompt])
        assert same([computed], [cold])
        engine.settle()
        assert engine.reset()
        engine.kill_at_load(pid=frail.pid)
        (computed,) = engine.run([prompt])
        assert same([computed], [cold])
        state = engine.settle()
        assert [state[key] for key in ("loading", "tracked", "worker_loads")] == [0] * 3
        engine.close()
    finally:
        frail.close()
