// Sessions, registration and the forming of namespaces.
#include <gmock/gmock.h>

#include "orbitkv/service/test_engine.h"

namespace orbitkv::service {
namespace {

using testing::HasSubstr;

RegisterOutcome Try(World& world, const Registration& registration) {
  return world.service().Register(world.Open(), registration, world.now());
}

void ExpectRefused(const RegisterOutcome& outcome, Code code, const std::string& part) {
  ASSERT_TRUE(outcome.refused.has_value());
  EXPECT_EQ(*outcome.refused, code);
  EXPECT_THAT(outcome.text, HasSubstr(part));
  EXPECT_FALSE(outcome.namespace_ready);
}

TEST(RegistryTest, OneWorkerFormsANamespace) {
  World world;
  const RegisterOutcome outcome = Try(world, world.Worker("engine"));
  ASSERT_FALSE(outcome.refused) << outcome.text;
  EXPECT_TRUE(outcome.namespace_ready);
  const Registration said = world.Worker("engine");
  EXPECT_EQ(outcome.namespace_digest,
            state::NamespaceDigest(said.computation, *said.representation, said.groups, said.shard_count));
  EXPECT_EQ(world.service().gauges().namespaces, 1U);
  world.ExpectQuiet();
}

TEST(RegistryTest, ANamespaceNeedsEveryRankAndThenStays) {
  World world;
  EXPECT_FALSE(Try(world, world.Scheduler("engine", 2, 2)).namespace_ready);
  const SessionId first = world.Join(world.Worker("engine", 0, 2, 0, 2));
  EXPECT_FALSE(Try(world, world.Worker("engine", 0, 2, 0, 2)).namespace_ready) << "the same rank twice is one rank";
  EXPECT_TRUE(Try(world, world.Worker("engine", 1, 2, 1, 2)).namespace_ready);
  world.End(first);
  EXPECT_TRUE(Try(world, world.Scheduler("engine", 2, 2)).namespace_ready);
  world.ExpectQuiet();
}

TEST(RegistryTest, ARankThatLeftDoesNotCount) {
  World world;
  const SessionId first = world.Join(world.Worker("engine", 0, 2));
  const SessionId scheduler = world.Join(world.Scheduler("engine", 2));
  world.End(first);
  EXPECT_FALSE(Try(world, world.Worker("engine", 1, 2)).namespace_ready);
  world.service().DetachSession(world.Join(world.Worker("engine", 0, 2)), world.now());
  const RegisterOutcome again = world.service().Register(scheduler, world.Scheduler("engine", 2), world.now());
  EXPECT_TRUE(again.namespace_ready) << "rank 0 was live together with rank 1";
  world.ExpectQuiet();
}

TEST(RegistryTest, EnginesOfOneKindShareANamespaceAndOthersDoNot) {
  World world;
  const RegisterOutcome one = Try(world, world.Worker("one"));
  const RegisterOutcome two = Try(world, world.Worker("two"));
  EXPECT_EQ(one.namespace_digest, two.namespace_digest);
  EXPECT_NE(one.instance, two.instance);
  EXPECT_EQ(world.service().gauges().namespaces, 1U);
  Registration other = world.Worker("other");
  other.computation = DigestOfByte(9);
  EXPECT_NE(Try(world, other).namespace_digest, one.namespace_digest);
  EXPECT_EQ(world.service().gauges().namespaces, 2U);
  world.ExpectQuiet();
  EXPECT_EQ(world.service().gauges().namespaces, 2U) << "blocks outlive engines";
}

TEST(RegistryTest, TheSameAgainIsIdempotentAndAnotherLayoutIsRefused) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const RegisterOutcome again = world.service().Register(session, world.Worker("engine"), world.now());
  EXPECT_FALSE(again.refused);
  EXPECT_TRUE(again.namespace_ready);
  Registration other = world.Worker("engine");
  other.groups[0].page_count = 3;
  ExpectRefused(world.service().Register(session, other, world.now()), Code::kRefused, "another layout");
  EXPECT_EQ(world.service().gauges().instances, 1U);
  ASSERT_TRUE(world.service().Unregister(session, world.now()).has_value());
  EXPECT_FALSE(world.service().Register(session, other, world.now()).refused);
  world.ExpectQuiet();
}

TEST(RegistryTest, DisagreementNamesBothValues) {
  World world;
  world.Join(world.Worker("engine", 0, 2, 0, 2));
  Registration other = world.Worker("engine", 1, 2, 1, 2);
  other.computation = DigestOfByte(0xab);
  const RegisterOutcome computation = Try(world, other);
  ExpectRefused(computation, Code::kRefused, "0101010101");
  ExpectRefused(computation, Code::kRefused, "ababababab");

  other = world.Worker("engine", 1, 2, 1, 2);
  other.representation = DigestOfByte(0xcd);
  const RegisterOutcome representation = Try(world, other);
  ExpectRefused(representation, Code::kRefused, "0202020202");
  ExpectRefused(representation, Code::kRefused, "cdcdcdcdcd");

  other = world.Worker("engine", 1, 2, 1, 2);
  other.groups[0].page_bytes = 777;
  const RegisterOutcome groups = Try(world, other);
  ExpectRefused(groups, Code::kRefused, "1000 bytes");
  ExpectRefused(groups, Code::kRefused, "777 bytes");

  ExpectRefused(Try(world, world.Worker("engine", 1, 3, 1, 2)), Code::kRefused, "has 2 ranks, this process says 3");
  ExpectRefused(Try(world, world.Worker("engine", 1, 2, 0, 1)), Code::kRefused, "has 2 shards, this process says 1");
  ExpectRefused(Try(world, world.Worker("engine", 0, 2, 1, 2)), Code::kRefused, "shard 0, this process says 1");
  Registration scheduler = world.Scheduler("engine", 2, 2);
  scheduler.computation = DigestOfByte(0xab);
  ExpectRefused(Try(world, scheduler), Code::kRefused, "ababababab");
  EXPECT_FALSE(Try(world, world.Worker("engine", 1, 2, 1, 2)).refused) << "refusals left no trace";
  world.ExpectQuiet();
}

TEST(RegistryTest, ADisagreementAboutRulesNamesBoth) {
  World world;
  // A scheduler that names rules comes first: pages are the workers' matter.
  Registration scheduler = world.Scheduler("engine", 2, 2);
  scheduler.groups = world.Worker("engine").groups;
  scheduler.groups[0].page_count = 0;
  scheduler.groups[0].page_bytes = 0;
  world.Join(scheduler);
  world.Join(world.Worker("engine", 0, 2, 0, 2));
  Registration other = world.Worker("engine", 1, 2, 1, 2);
  other.groups[0].block_tokens = 48;
  const RegisterOutcome blocks = Try(world, other);
  ExpectRefused(blocks, Code::kRefused, "full attention with blocks of 32 tokens");
  ExpectRefused(blocks, Code::kRefused, "full attention with blocks of 48 tokens");
  Registration window = world.Scheduler("engine", 2, 2);
  window.groups = scheduler.groups;
  window.groups[0].kind = state::GroupKind::kSlidingWindow;
  window.groups[0].span_tokens = 64;
  const RegisterOutcome rules = Try(world, window);
  ExpectRefused(rules, Code::kRefused, "full attention with blocks of 32 tokens");
  ExpectRefused(rules, Code::kRefused, "a window of 64 tokens with blocks of 32 tokens");
  Registration hashed = scheduler;
  hashed.groups[0].hash_block_tokens = 8;
  ExpectRefused(Try(world, hashed), Code::kRefused, "hashed every 8 tokens");
  hashed.groups[0].hash_block_tokens = 32;
  EXPECT_FALSE(Try(world, hashed).refused) << "the divisor named or left out is the same";
  EXPECT_FALSE(Try(world, world.Worker("engine", 1, 2, 1, 2)).refused);
  world.ExpectQuiet();
}

TEST(RegistryTest, RulesThatCannotBeKeptAreRefused) {
  World world;
  Registration worker = world.Worker("engine");
  worker.groups[0].kind = state::GroupKind::kSlidingWindow;
  ExpectRefused(Try(world, worker), Code::kInvalid, "a sliding window of 0 tokens");
  worker = world.Worker("engine");
  worker.groups[0].span_tokens = 5;
  ExpectRefused(Try(world, worker), Code::kInvalid, "only a window or chunked group has a span");
  worker = world.Worker("engine");
  worker.groups[0].hash_block_tokens = 7;
  ExpectRefused(Try(world, worker), Code::kInvalid, "no multiple of the hash block (32, 7)");
  worker.groups.push_back(worker.groups[0]);
  worker.groups[1].hash_block_tokens = 8;
  ExpectRefused(Try(world, worker), Code::kInvalid, "hash blocks of 7 and 8 tokens");
  world.ExpectQuiet();
}

TEST(RegistryTest, RegistrationsThatMakeNoSense) {
  World world;
  ExpectRefused(Try(world, world.Worker("")), Code::kInvalid, "name of the instance");
  ExpectRefused(Try(world, world.Worker("engine", 0, 0)), Code::kInvalid, "world_size is 0");
  ExpectRefused(Try(world, world.Worker("engine", 2, 2)), Code::kInvalid, "rank 2 of 2");
  ExpectRefused(Try(world, world.Worker("engine", 0, 2, 2, 2)), Code::kInvalid, "shard 2 of 2");
  ExpectRefused(Try(world, world.Worker("engine", 0, 1, 0, 2)), Code::kInvalid, "shard_count is 2");
  ExpectRefused(Try(world, world.Worker("engine", 0, 100, 0, 100)), Code::kInvalid, "at most 64");
  Registration bad = world.Worker("engine");
  bad.representation.reset();
  ExpectRefused(Try(world, bad), Code::kInvalid, "representation digest");
  bad = world.Worker("engine");
  bad.groups.clear();
  ExpectRefused(Try(world, bad), Code::kInvalid, "none");
  bad.groups = {{32, 0, 1000}};
  ExpectRefused(Try(world, bad), Code::kInvalid, "empty cache group");
  bad.groups = {{32, 0xffffffffU, 0xffffffffffffULL}};
  ExpectRefused(Try(world, bad), Code::kInvalid, "4 GiB");
  bad.groups = {{32, 1, 65 * kMiB}};
  ExpectRefused(Try(world, bad), Code::kInvalid, "larger pool");
  ExpectRefused(world.service().Register(SessionId(999), world.Worker("engine"), world.now()), Code::kNotFound, "open");
  EXPECT_EQ(world.service().gauges().instances, 0U);
  world.ExpectQuiet();
}

TEST(RegistryTest, EveryShardNeedsARank) {
  World world;
  world.Join(world.Worker("engine", 0, 2, 0, 2));
  ExpectRefused(Try(world, world.Worker("engine", 1, 2, 0, 2)), Code::kRefused, "none has shard 1 of 2");
  EXPECT_TRUE(Try(world, world.Worker("engine", 1, 2, 1, 2)).namespace_ready) << "the refused one left no trace";
  world.ExpectQuiet();
}

TEST(RegistryTest, ANewEngineTakesTheNameOfOneThatOnlyDrains) {
  World world;
  const SessionId old = world.Join(world.Worker("engine"));
  Registration changed = world.Worker("engine");
  changed.computation = DigestOfByte(7);
  ExpectRefused(Try(world, changed), Code::kRefused, "same model");
  world.service().DetachSession(old, world.now());
  EXPECT_FALSE(Try(world, changed).refused);
  EXPECT_EQ(world.service().gauges().instances, 2U);
  world.End(old);
  EXPECT_FALSE(Try(world, changed).refused) << "the name still means the new engine";
  EXPECT_EQ(world.service().gauges().instances, 1U);
  world.ExpectQuiet();
}

TEST(RegistryTest, LimitsAreKept) {
  WorldOptions options;
  options.limits.max_sessions = 3;
  options.limits.max_instances = 2;
  options.limits.max_namespaces = 1;
  World world(options);
  world.Join(world.Worker("one"));
  Registration other = world.Worker("two");
  other.computation = DigestOfByte(9);
  const SessionId second = world.Open();
  const RegisterOutcome full = world.service().Register(second, other, world.now());
  ExpectRefused(full, Code::kExhausted, "namespaces");
  EXPECT_FALSE(world.service().Register(second, world.Worker("two"), world.now()).refused);
  ExpectRefused(world.service().Register(world.Open(), world.Worker("three"), world.now()), Code::kBusy, "instances");
  EXPECT_EQ(CodeOf(world.service().OpenSession(SessionId(77), Purpose::kControl, 5)), Code::kBusy);
  world.ExpectQuiet();
}

TEST(RegistryTest, DetachedSessionsHavePlacesOfTheirOwnAndThoseAreBoundedToo) {
  WorldOptions options;
  options.limits.max_sessions = 2;
  World world(options);
  Service& service = world.service();
  std::uint64_t next = 100;
  const auto open = [&] {
    ++next;
    return service.OpenSession(SessionId(next), Purpose::kControl, next).has_value();
  };
  std::vector<SessionId> detached;
  while (detached.size() < 3) {
    ASSERT_TRUE(open()) << detached.size();
    detached.emplace_back(next);
    service.DetachSession(detached.back(), world.now());
  }
  // Two places, of which the third detached one takes one.
  EXPECT_TRUE(open());
  EXPECT_FALSE(open());
  service.EndSession(detached.back(), world.now());
  EXPECT_TRUE(open());
  EXPECT_FALSE(open());
  EXPECT_EQ(service.gauges().sessions, 4U);
}

TEST(RegistryTest, ANamespaceThatNobodyUsesMakesRoom) {
  WorldOptions options;
  options.limits.max_namespaces = 2;
  World world(options);
  const auto model = [&world](std::uint8_t number) {
    Registration registration = world.Worker("engine " + std::to_string(number));
    registration.computation = DigestOfByte(number);
    return registration;
  };
  const auto chain = Chain(1, 3);
  const SessionId first = world.Join(model(1));
  ASSERT_EQ(world.Publish(first, chain), 3U);
  world.End(first);
  world.End(world.Join(model(2)));
  // The second one left nothing behind; the first one left blocks.
  const SessionId third = world.Join(model(3));
  EXPECT_EQ(world.Found(third, 1, chain), 0U);
  EXPECT_EQ(world.service().gauges().namespaces, 2U);
  ASSERT_EQ(world.Publish(third, std::span(chain).first(2)), 2U);
  const SessionId again = world.Join(model(1));
  EXPECT_EQ(world.Found(again, 1, chain), 3U);
  const RegisterOutcome full = world.service().Register(world.Open(), model(4), world.now());
  ExpectRefused(full, Code::kExhausted, "namespaces");
  world.End(third);
  ExpectRefused(world.service().Register(world.Open(), model(4), world.now()), Code::kExhausted, "namespaces");
  world.ExpectQuiet();
}

TEST(RegistryTest, SessionsAndTokensAreUnique) {
  World world;
  const SessionId session = world.Open();
  Service& service = world.service();
  EXPECT_EQ(CodeOf(service.OpenSession(session, Purpose::kControl, 5)), Code::kInvalid);
  EXPECT_EQ(CodeOf(service.OpenSession(SessionId(77), Purpose::kControl, World::TokenOf(session))), Code::kInvalid);
  EXPECT_EQ(CodeOf(service.OpenSession(SessionId(), Purpose::kControl, 6)), Code::kInvalid);
  EXPECT_EQ(service.DrainSession(12345, world.now()), std::nullopt);
  EXPECT_EQ(service.DrainSession(World::TokenOf(session), world.now()), session);
  EXPECT_EQ(service.DrainSession(World::TokenOf(session), world.now()), std::nullopt) << "the token ended with it";
  EXPECT_TRUE(service.OpenSession(SessionId(77), Purpose::kControl, World::TokenOf(session)).has_value());
  service.EndSession(SessionId(77), world.now());
  service.EndSession(SessionId(77), world.now());
  world.ExpectQuiet();
}

TEST(RegistryTest, CallsOfSessionsThatMayNotCall) {
  World world;
  const std::vector<state::BlockHash> chain = Chain(1, 2);
  EXPECT_EQ(CodeOf(world.TryQuery(SessionId(99), 1, chain)), Code::kNotFound);
  const SessionId session = world.Open();
  EXPECT_EQ(CodeOf(world.TryQuery(session, 1, chain)), Code::kRefused);
  EXPECT_EQ(CodeOf(world.Begin(session, LeaseId(1), 1, {0}, 1)), Code::kRefused);
  EXPECT_EQ(CodeOf(world.End(session, 1)), Code::kRefused);
  EXPECT_EQ(CodeOf(world.ReleaseGrant(session, 1)), Code::kRefused);
  EXPECT_EQ(CodeOf(world.TryReserve(session, chain)), Code::kRefused);
  const SessionId detached = world.Join(world.Worker("engine"));
  world.service().DetachSession(detached, world.now());
  EXPECT_EQ(CodeOf(world.TryQuery(detached, 1, chain)), Code::kNotFound);
  ExpectRefused(world.service().Register(detached, world.Worker("engine"), world.now()), Code::kNotFound, "open");
  EXPECT_EQ(world.service().gauges().sessions_detached, 1U);
  world.ExpectQuiet();
}

TEST(LimitsTest, ValidateRefusesWhatCannotWork) {
  Limits good;
  good.pool_bytes = kMiB;
  EXPECT_TRUE(good.Validate().has_value());
  EXPECT_EQ(CodeOf(Limits{}.Validate()), Code::kInvalid) << "no pool";
  Limits bad = good;
  bad.max_shards = 65;
  EXPECT_EQ(CodeOf(bad.Validate()), Code::kInvalid);
  bad = good;
  bad.remembered_ns = bad.lease_ns - 1;
  EXPECT_EQ(CodeOf(bad.Validate()), Code::kInvalid);
  bad = good;
  bad.lease_percent_per_instance = 101;
  EXPECT_EQ(CodeOf(bad.Validate()), Code::kInvalid);
  bad = good;
  bad.operations_total = bad.operations_per_session - 1;
  EXPECT_EQ(CodeOf(bad.Validate()), Code::kInvalid);
}

}  // namespace
}  // namespace orbitkv::service
