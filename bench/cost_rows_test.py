"""Tests of the comparison of an engine's states: in which order they are measured, and what the rows say of it."""

import collections
import itertools
import unittest

from cost_rows import ANSWER_TOKENS, PROMPT_TOKENS, STATES, WARM_UP, bootstrap_interval, check_saved, cost_rows, measure


class Engine:
    """Takes for each batch what its state is worth, and later batches longer."""

    def __init__(self, **worth):
        self.worth = worth
        self.calls = []

    def batch(self, state, concurrency, seed):
        self.calls.append((state, concurrency, seed))
        took = 100 + 0.01 * len(self.calls) + self.worth.get(state, 0)
        return {"total_ms": 10 * took, "ttft_ms": took, "cpu_ms": 2 * took}


class Order(unittest.TestCase):
    def setUp(self):
        self.engine = Engine()
        self.taken = measure(self.engine.batch, (1, 8), rounds=24)
        self.rounds = [self.engine.calls[i : i + 4] for i in range(0, len(self.engine.calls), 4)]

    def test_a_round_is_every_state_once_with_the_same_prompts(self):
        self.assertEqual(len(self.rounds), 2 * (WARM_UP + 24))
        for calls in self.rounds:
            self.assertEqual(sorted(state for state, _, _ in calls), sorted(STATES))
            self.assertEqual(len({call[1:] for call in calls}), 1)

    def test_no_prompt_comes_round_again(self):
        seeds = [seed + i for (_, count, seed), *_ in self.rounds for i in range(count)]
        self.assertEqual(len(set(seeds)), len(seeds))

    def test_every_state_has_every_place_and_every_other_one_before_it_equally_often(self):
        counted = [[state for state, _, _ in calls] for calls in self.rounds[WARM_UP : WARM_UP + 24]]
        places = collections.Counter(place for states in counted for place in enumerate(states))
        self.assertEqual(set(places.values()), {6})
        neighbours = collections.Counter(pair for states in counted for pair in itertools.pairwise(states))
        self.assertEqual((len(neighbours), set(neighbours.values())), (12, {6}))

    def test_the_first_rounds_are_not_counted(self):
        for taken in self.taken.values():
            self.assertEqual({state: len(entries) for state, entries in taken.items()}, dict.fromkeys(STATES, 24))
        first = min(entry["ttft_ms"] for entries in self.taken[1].values() for entry in entries)
        self.assertAlmostEqual(first, 100 + 0.01 * (4 * WARM_UP + 1))


class Rows(unittest.TestCase):
    def rows(self, **worth):
        rows = cost_rows("cost", 8, measure(Engine(**worth).batch, (8,), rounds=24)[8])
        return {row["name"]: row for row in rows}

    def near(self, interval, expected):
        self.assertLessEqual(interval[0], expected + 0.5)
        self.assertGreaterEqual(interval[1], expected - 0.5)
        self.assertLess(interval[1] - interval[0], 1)

    def test_each_interval_is_of_its_own_pair_of_states(self):
        row = self.rows(empty=2, on=7)["cost.ttft_ms.c8"]
        self.near(row["interval"], 7)
        self.near(row["noise"], 0)
        self.near(row["any"], 2)
        self.near(row["own"], 5)
        self.assertAlmostEqual(row["median"], 7, delta=0.5)
        self.assertEqual(row["value"], row["interval"][1])
        self.assertEqual(row["samples"], 24)

    def test_a_hundredth_is_allowed_and_never_less_than_a_millisecond(self):
        rows = self.rows(on=5)
        self.assertAlmostEqual(rows["cost.total_ms.c8"]["baseline_value"], 10, delta=0.2)
        self.assertAlmostEqual(rows["cost.total_ms.c8"]["ratio"], 5, delta=0.5)
        self.assertAlmostEqual(rows["cost.ttft_ms.c8"]["baseline_value"], 1, delta=0.02)

    def test_what_is_spent_is_compared_with_what_is_spent_without(self):
        row = self.rows(on=50)["cost.cpu_ms.c8"]
        self.assertAlmostEqual(row["value"], 300, delta=3)
        self.assertAlmostEqual(row["baseline_value"], 200, delta=3)
        self.assertAlmostEqual(row["ratio"], 1.5, delta=0.02)


class Interval(unittest.TestCase):
    def test_it_is_as_wide_as_the_median_is_uncertain(self):
        low, high = bootstrap_interval(range(101))
        # Of so many, the median lies between the 41st and the 61st in 95 cases of 100.
        self.assertAlmostEqual(low, 40, delta=2)
        self.assertAlmostEqual(high, 60, delta=2)


class Saved(unittest.TestCase):
    BLOCK = 32
    EVERY = 9 * (WARM_UP + 24) * ((PROMPT_TOKENS + ANSWER_TOKENS - 1) // BLOCK)

    def test_a_comparison_counts_when_one_state_saved(self):
        check_saved(self.EVERY, self.BLOCK, (1, 8), rounds=24)
        check_saved(self.EVERY - 10, self.BLOCK, (1, 8), rounds=24)

    def test_and_not_when_none_did_or_others_did_too(self):
        for stored in (0, self.EVERY // 2, self.EVERY + 1):
            with self.subTest(stored), self.assertRaisesRegex(SystemExit, "void"):
                check_saved(stored, self.BLOCK, (1, 8), rounds=24)


if __name__ == "__main__":
    unittest.main()
