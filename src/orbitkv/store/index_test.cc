#include "orbitkv/store/index.h"

#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <vector>

#include "orbitkv/base/prng.h"

namespace orbitkv::store {
namespace {

state::StateKey KeyOf(std::uint64_t number) {
  state::StateKey key;
  std::memcpy(key.hash.bytes.data(), &number, sizeof number);
  key.group = static_cast<std::uint32_t>(number % 3);
  return key;
}

Facts FactsOf(std::uint64_t number) {
  Facts facts;
  if (number % 2 == 1) facts.parent = KeyOf(number - 1).hash;
  facts.depth = static_cast<std::uint32_t>(number);
  facts.payload_bytes = 4096;
  facts.checksum = number * 7;
  return facts;
}

TEST(Index, AgreesWithAMap) {
  const auto index = Index::Create(500, 3).value();
  struct Known {
    std::uint64_t facts;
    Location location;
    EntryId id;
  };
  std::map<std::uint64_t, Known> model;
  Prng prng(1);
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t number = prng.Below(800);
    const Location location{static_cast<std::uint32_t>(prng.Below(1U << 20U)),
                            static_cast<std::uint32_t>(prng.Below(1U << 21U))};
    const auto known = model.find(number);
    const std::uint64_t what = prng.Below(4);
    if (what < 2) {
      const bool only_new = what == 1;
      const auto put = only_new ? index->PutIfAbsent(KeyOf(number), FactsOf(step), location)
                                : index->Put(KeyOf(number), FactsOf(step), location);
      const bool expected = known != model.end() ? !only_new : model.size() < 500;
      ASSERT_EQ(put.has_value(), expected);
      if (put) model[number] = {static_cast<std::uint64_t>(step), location, *put};
    } else if (what == 2) {
      ASSERT_FALSE(index->Erase(KeyOf(number), {location.segment ^ 1U, location.sector ^ 1U}));
      const bool erased = known != model.end() && index->Erase(KeyOf(number), known->second.location);
      ASSERT_EQ(erased, known != model.end());
      if (erased) model.erase(known);
    } else if (known != model.end()) {
      const std::vector<EntryId> ids = {known->second.id};
      ASSERT_EQ(index->EraseFromSegment(ids, known->second.location.segment ^ 1U), 0U);
      ASSERT_TRUE(index->InSegment(known->second.id, known->second.location.segment));
      ASSERT_EQ(index->EraseFromSegment(ids, known->second.location.segment), 1U);
      ASSERT_FALSE(index->InSegment(known->second.id, known->second.location.segment));
      model.erase(known);
    }
    ASSERT_EQ(index->size(), model.size());
  }
  for (std::uint64_t number = 0; number < 800; ++number) {
    const auto found = index->Find(KeyOf(number));
    const auto known = model.find(number);
    ASSERT_EQ(found.has_value(), known != model.end());
    if (!found) continue;
    const Facts facts = FactsOf(known->second.facts);
    EXPECT_EQ(found->location, known->second.location);
    EXPECT_EQ(found->facts.parent, facts.parent);
    EXPECT_EQ(found->facts.depth, facts.depth);
    EXPECT_EQ(found->facts.checksum, facts.checksum);
    EXPECT_EQ(found->facts.payload_bytes, facts.payload_bytes);
  }
}

TEST(Index, CountsUsesUntilItIsPutAgain) {
  const auto index = Index::Create(10, 3).value();
  ASSERT_TRUE(index->Put(KeyOf(1), FactsOf(1), {1, 2}));
  for (const std::uint32_t uses : {1U, 2U, 3U, 3U}) EXPECT_EQ(index->Use(KeyOf(1))->uses, uses);
  EXPECT_EQ(index->Find(KeyOf(1))->facts.parent, KeyOf(0).hash);
  ASSERT_TRUE(index->Put(KeyOf(1), FactsOf(1), {1, 3}));
  EXPECT_EQ(index->Find(KeyOf(1))->uses, 0U);
}

TEST(Index, EveryPartOfTheKeyCounts) {
  const auto index = Index::Create(10, 3).value();
  ASSERT_TRUE(index->Put(KeyOf(0), FactsOf(1), {1, 2}));
  state::StateKey other = KeyOf(0);
  other.shard = 1;
  EXPECT_FALSE(index->Find(other));
  other = KeyOf(0);
  other.group = 1;
  EXPECT_FALSE(index->Find(other));
  other = KeyOf(0);
  other.namespace_digest[31] = std::byte{1};
  EXPECT_FALSE(index->Find(other));
  other = KeyOf(0);
  other.hash.bytes[31] = std::byte{1};
  EXPECT_FALSE(index->Find(other));
}

TEST(Index, TakesLessThanEightyBytesForEach) {
  const auto index = Index::Create(100'000, 3).value();
  for (std::uint64_t i = 0; i < 100'000; ++i) ASSERT_TRUE(index->Put(KeyOf(i), FactsOf(i), {1, 2}));
  EXPECT_LT(index->bytes(), 80U * 100'000U);
}

}  // namespace
}  // namespace orbitkv::store
