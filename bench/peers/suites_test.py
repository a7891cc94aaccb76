"""Tests of what the suites count by themselves: sockets, order of the peers, records of failed passes."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import ceilings
import data_path
import engines
import environments
import failures
import restarts
import run
from harness.children import ChildError, NoAnswerError
from peer import NotRunError
from report import Record

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:C76B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0000 100 0 0 10 0
   1: 00000000:C76C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0000 100 0 0 10 0
   2: 00000000:C76D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 99 1 0000 100 0 0 10 0
   3: 0200000A:C76E 0100007F:C76C 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0000 100 0 0 10 0
"""


class Sockets(unittest.TestCase):
    def test_what_listens_on_all_addresses_is_found(self):
        self.assertEqual(failures.beyond_loopback(TABLE, {"11", "12", "13"}), ["00000000:C76C"])

    def test_sockets_of_others_do_not_count(self):
        self.assertEqual(failures.beyond_loopback(TABLE, {"11"}), [])

    def test_loopback_in_both_families(self):
        for address in ("0100007F", "0200007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"):
            self.assertTrue(failures.is_loopback(address), address)
        for address in ("00000000", "0" * 32, "000080FE00000000000000000000007F"):
            self.assertFalse(failures.is_loopback(address), address)


class Passes(unittest.TestCase):
    def test_another_peer_begins_each_pass(self):
        self.assertEqual([run.in_turn(["a", "b", "c"], n)[0] for n in range(4)], ["a", "b", "c", "a"])
        self.assertEqual(sorted(run.in_turn(["a", "b", "c"], 2)), ["a", "b", "c"])

    def test_rows_that_a_failed_pass_did_not_reach_have_its_reason(self):
        made = list(data_path.records("x", 0, {"save.64K": 1.0}, {}, "failed: gone"))
        self.assertIn(Record("save.64K", "x", 0, 1.0), made)
        self.assertIn(Record("load.64K", "x", 0, None, "failed: gone"), made)
        self.assertEqual(len(made), len(data_path.KINDS))

    def test_a_remark_stays_with_its_value(self):
        made = list(data_path.records("x", 0, {"load_one.64K": 1.0}, {"load_one.64K": "16 blocks"}, ""))
        self.assertEqual(made, [Record("load_one.64K", "x", 0, 1.0, "16 blocks")])


class Answers(unittest.TestCase):
    def run_of(self, *answers):
        return engines.Run("x", 0, answers=[list(answer) for answer in answers])

    def test_equal_answers_are_counted_in_order(self):
        self.assertEqual(engines.equal_percent(self.run_of((1, 2), (3,)), self.run_of((1, 2), (4,))), 50)

    def test_more_events_of_one_do_not_count(self):
        self.assertEqual(engines.equal_percent(self.run_of((1,), (2,)), self.run_of((1,))), 100)

    def test_without_answers_there_is_no_figure(self):
        self.assertIsNone(engines.equal_percent(self.run_of(), self.run_of((1,))))


class FakePeer:
    name = "x"

    def __init__(self):
        self.serves = False

    def connector(self):
        return {}

    def start(self, config):
        self.serves = True

    def stop(self, number):
        self.serves = False

    def close(self):
        pass


class FakeEngine:
    """Finds every prompt that it had before; one that has seen a kill does not answer any more."""

    starts_alone = True

    def __init__(self, peer, model, log, start_limit_s=0.0):
        if not peer.serves and not self.starts_alone:
            raise NoAnswerError("it waits")
        self.peer = peer
        self.waits_for_server = peer.serves
        self.seen = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def serve(self, seeds, tokens=0):
        if self.waits_for_server and not self.peer.serves:
            raise NoAnswerError("the process did not answer")
        served = [{"first_ms": 7.0, "cached": int(seed in self.seen), "tokens": [seed]} for seed in seeds]
        self.seen |= set(seeds)
        return served

    def forget(self, seconds=0.0):
        pass

    def call(self, name, **_):
        turn = {"tokens": 1, "seconds": 1.0, "cached": 1, "prompt": 2}
        return {"rounds": [turn, turn], "answers": [[1]]}


class Stalls(unittest.TestCase):
    def rows_of(self, kind):
        with mock.patch.object(engines, "Engine", kind):
            run_of_one, failure = engines.measure(FakePeer(), 0, Path(), Path())
        self.assertEqual(failure, "")
        return {record.row: record for record in run_of_one.records(failure)}

    def test_a_request_that_does_not_end_is_a_stall_and_the_rows_after_it_come_from_new_engines(self):
        rows = self.rows_of(FakeEngine)
        stall = rows["kill.longest_stall_ms"]
        self.assertEqual((stall.value, stall.at_least), (1e3 * engines.CALL_LIMIT_S - 7.0, True))
        self.assertIn("gave up", stall.why)
        for row in ("kill.ttft_ms", "kill.recovery_s", "ttft.after_restart_ms"):
            self.assertIsNotNone(rows[row].value, row)
            self.assertIn("in a new engine", rows[row].why)
            self.assertFalse(rows[row].at_least)

    def test_where_no_engine_starts_without_the_server_only_that_row_is_missing(self):
        rows = self.rows_of(type("Waits", (FakeEngine,), {"starts_alone": False}))
        self.assertIsNone(rows["kill.ttft_ms"].value)
        self.assertIn("no new engine serves within 90 s", rows["kill.ttft_ms"].why)
        self.assertIsNotNone(rows["ttft.after_restart_ms"].value)


QUIET = {"1M": 20.0, "loopback": 4.0}
BUSY = {"1M": 11.0, "loopback": 4.0}


class Machine(unittest.TestCase):
    def test_a_pass_is_off_when_one_ceiling_differs_from_most_passes(self):
        self.assertEqual(ceilings.off([QUIET, BUSY, QUIET]), [1])
        self.assertEqual(ceilings.off([BUSY, QUIET | {"loopback": 6.0}, QUIET]), [0, 1])
        self.assertEqual(ceilings.off([QUIET, QUIET | {"1M": 15.0}, QUIET]), [])
        self.assertEqual(ceilings.off([BUSY]), [])

    def passes(self, *machine):
        """Runs a suite whose records say which try they are of."""
        tries = iter(range(100))

        def one(names, number, model, scratch):
            return [Record("load", names[0], number, float(next(tries)))]

        suite = run.Suite("T", [], one, ("x",))
        with (
            mock.patch.dict(run.SUITES, {"T": suite}),
            mock.patch.object(ceilings, "measure", side_effect=machine),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            return run.run_suite("T", ["x"], 3, Path(), Path())

    def test_a_pass_in_which_the_machine_was_off_is_taken_again_in_its_place(self):
        records, repeated = self.passes(QUIET, BUSY, QUIET, QUIET)
        self.assertEqual([(record.number, record.value) for record in records], [(0, 0.0), (1, 3.0), (2, 2.0)])
        self.assertEqual(repeated, [{"suite": "T", "pass": 2, "ceilings": BUSY, "ceilings_again": QUIET}])

    def test_equal_passes_are_taken_once(self):
        records, repeated = self.passes(QUIET, QUIET, QUIET)
        self.assertEqual(([record.value for record in records], repeated), ([0.0, 1.0, 2.0], []))


class Together(unittest.TestCase):
    def test_what_ran_while_the_other_one_had_not_begun_or_had_ended_does_not_count(self):
        saves = [[2.0, 3.0], [3.0, 5.0]]
        loads = [[1.0, 1.5], [1.9, 2.1], [2.5, 3.0], [4.0, 4.25], [4.9, 5.1], [5.5, 6.0]]
        self.assertEqual(data_path.together(saves, loads), ([1.0, 2.0], [0.5, 0.25]))

    def test_two_that_were_never_at_work_together_give_no_figure(self):
        with self.assertRaises(ChildError):
            data_path.together([[1.0, 2.0]], [[3.0, 4.0]])


class FakeStore(FakePeer):
    """`kept`: how many blocks of each prompt its next life has."""

    def __init__(self, kept, on_disk):
        super().__init__()
        self.kept, self.on_disk, self.lives = kept, on_disk, 0

    def start(self, config):
        self.lives += 1

    def crash(self):
        pass

    def ssd_bytes(self, config):
        return self.on_disk


class FakeClient:
    right = True

    def __init__(self, peer, log):
        self.peer = peer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def call(self, name, prompts=(), **_):
        count = self.peer.kept if self.peer.lives > 1 else 256
        answers = {
            "open": True,
            "save": {"stored": [256] * len(prompts)},
            "lookups": {"found": [count]},
            "load": {
                "loaded": [count] * len(prompts),
                "right": [self.right] * len(prompts),
                "seconds": [0.5] * len(prompts),
            },
        }
        return answers[name]


class Restarts(unittest.TestCase):
    def rows_of(self, kept, client=FakeClient, on_disk=restarts.SAVED_BYTES):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(restarts, "Client", client),
            mock.patch.dict(restarts.AWAY_S, {"slow": 0.01}),
            mock.patch.multiple(restarts, WATCH_S=0.02, DURABLE_LIMIT_S=0.02),
        ):
            outcome, failure = restarts.measure(
                lambda: FakeStore(kept, on_disk), Path(folder) / "logs", Path(folder) / "ssd"
            )
        return {record.row: record for record in restarts.records("x", 0, outcome, failure)}

    def test_what_is_served_is_a_share_of_what_was_saved(self):
        rows = self.rows_of(64)
        self.assertEqual((rows["ssd.quick.served"].value, rows["ssd.slow.served"].value), (25, 25))
        self.assertIsNotNone(rows["ssd.quick.first_s"].value)

    def test_the_rate_of_loads_is_that_of_complete_ones(self):
        self.assertIsNone(self.rows_of(64)["ssd.load"].value)
        self.assertAlmostEqual(self.rows_of(256)["ssd.load"].value, 256 * (1 << 20) / 0.5 / 1e9)

    def test_one_that_serves_nothing_has_a_zero_and_a_reason_for_the_first_hit(self):
        rows = self.rows_of(0)
        self.assertEqual(rows["ssd.quick.served"].value, 0)
        self.assertIn("no hit", rows["ssd.quick.first_s"].why)

    def test_wrong_bytes_are_a_failure_and_no_share(self):
        rows = self.rows_of(256, type("Wrong", (FakeClient,), {"right": False}))
        self.assertIsNone(rows["ssd.slow.served"].value)
        self.assertIn("not those that were saved", rows["ssd.slow.served"].why)

    def test_what_never_reaches_the_ssd_is_told(self):
        self.assertIn("50 % were there", self.rows_of(256, on_disk=restarts.SAVED_BYTES // 2)["ssd.durable_s"].why)


class Environments(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.addCleanup(self.root.cleanup)
        where = mock.patch.object(environments, "ROOT", Path(self.root.name))
        where.start()
        self.addCleanup(where.stop)
        silence = contextlib.redirect_stdout(io.StringIO())
        silence.__enter__()
        self.addCleanup(silence.__exit__, None, None, None)

    def test_an_environment_is_complete_with_the_stamp_of_its_list_only(self):
        self.assertFalse(environments.complete("redis"))
        environments.folder("redis").mkdir()
        stamp = environments.folder("redis") / environments.STAMP
        stamp.write_text(environments.stamp_text("redis"))
        self.assertTrue(environments.complete("redis"))
        stamp.write_text(environments.stamp_text("lmcache"))
        self.assertFalse(environments.complete("redis"))

    def test_packages_that_cannot_be_installed_are_a_reason_not_to_run(self):
        failed = mock.Mock(returncode=1, stderr="noise\nERROR: no such version\n")
        with (
            mock.patch.object(environments.venv, "create"),
            mock.patch.object(Path, "write_text"),
            mock.patch.object(environments.subprocess, "run", return_value=failed),
            self.assertRaisesRegex(NotRunError, "no such version"),
        ):
            environments.make("redis")
        self.assertFalse(environments.complete("redis"))

    def test_what_cannot_run_is_told_and_does_not_stop_the_others(self):
        def make(name):
            if name == "lmcache":
                raise NotRunError("no wheel")

        with (
            mock.patch.object(environments, "make", make),
            mock.patch.object(environments, "check_import"),
            mock.patch("shutil.which", return_value="redis-server"),
        ):
            absent = run.available(["lmcache_mp", "redis", "none"])
        self.assertEqual(absent, {"lmcache_mp": "no wheel"})


if __name__ == "__main__":
    unittest.main()
