// A Manager that lies, babbles, stalls or goes away half way: the operation fails, the client goes on, and no page
// outside the operation's own is ever written.
#include <cstring>

#include "orbitkv/base/prng.h"
#include "orbitkv/channel/ring.h"
#include "orbitkv/client/client_fixture.h"
#include "orbitkv/wire/frame.h"

namespace orbitkv::client {
namespace {

using channel::ReceivedRequest;
using channel::ServerSession;
using wire::AnswerStatus;
using wire::Command;

template <typename T>
std::span<const std::byte> AsBytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

class HostileManagerTest : public ClientTest {
 protected:
  // Answers this command with these bytes, whatever was asked.
  void AnswerAll(Command command, std::span<const std::byte> payload, AnswerStatus status = AnswerStatus::kOk,
                 std::uint64_t scalar0 = 1) {
    const std::vector<std::byte> bytes(payload.begin(), payload.end());
    manager_->SetScript([=](ServerSession& session, const ReceivedRequest& request) {
      if (request.command != command) return false;
      session.Answer(request.handle, status, scalar0, 0, bytes);
      return true;
    });
  }
  // Everything works, with bytes compared.
  void ExpectWorking(std::uint64_t seed) {
    const auto hashes = Hashes(2, seed);
    pages_.Fill(seed);
    const auto expected = pages_.Block(1);
    ASSERT_TRUE(Publish(hashes, Ids(2)).ok);
    const GrantId grant = Begin(Ask(hashes, "works"));
    ASSERT_FALSE(grant.is_none());
    const Completion done = Finished(StartRestore(grant, hashes, Ids(2, 30)).value()).value();
    EXPECT_TRUE(done.ok) << done.error;
    EXPECT_EQ(pages_.Block(31), expected);
  }
};

TEST_F(HostileManagerTest, PlansThatCannotBeAreRefusedAndNoPageIsTouched) {
  StartManager();
  Connect();
  const std::uint32_t slot = pages_.Layout().slot_bytes();
  pages_.Fill(1);
  const auto before = pages_.Block(0);
  const auto entry = [](std::uint64_t offset, std::uint32_t bytes, std::uint32_t block) {
    return wire::PlanEntry{.offset = offset, .generation = 1, .slot_bytes = bytes, .block = block};
  };
  wire::PlanEntry other_group = entry(65536, slot, 1);
  other_group.group = 1;
  const std::vector<wire::PlanEntry> plans[] = {
      {},                                                                  // no block
      {entry(0, slot, 0)},                                                 // too few
      {entry(0, slot, 0), entry(8192, slot, 1)},                           // overlapping: a slot is longer
      {entry(0, slot, 0), entry(0, slot, 1)},                              // the same twice
      {entry(131072, slot, 0), entry(0, slot, 1), entry(65536, slot, 2)},  // too many
      {entry(0, 0, 0), entry(65536, 0, 1)},                                // of no length
      {entry(0, slot, 0), entry(~0ULL, slot, 1)},                          // one good, one outside
      {entry(0, slot, 1), entry(65536, slot, 0)},                          // in another order
      {entry(0, slot, 0), other_group}};                                   // of another group
  std::size_t bad = 0;
  for (const auto& plan : plans) {
    AnswerAll(Command::kRestorePlan, AsBytes(plan));
    const Completion done = Finished(StartRestore(GrantId(5), Hashes(2), Ids(2)).value()).value();
    EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kFailed)) << bad;
    EXPECT_EQ(Counter("bad_answers"), ++bad);
  }
  AnswerAll(Command::kRestorePlan, std::as_bytes(std::span("not a plan")));
  EXPECT_FALSE(Finished(StartRestore(GrantId(5), Hashes(2), Ids(2)).value()).value().ok);
  EXPECT_EQ(pages_.Block(0), before);
  EXPECT_TRUE(manager_->Seen("end failed", std::size(plans) + 1));
  manager_->SetScript(nullptr);
  ExpectWorking(2);
}

TEST_F(HostileManagerTest, APlanOfOtherSlotsIsAMismatchAndNeverAWrongBlock) {
  StartManager();
  Connect();
  pages_.Fill(3);
  const auto hashes = Hashes(4);
  Publish(hashes, Ids(4));
  const std::uint32_t slot = pages_.Layout().slot_bytes();
  // Slots that hold other blocks, with the checksums that those blocks have.
  std::vector<wire::PlanEntry> plan;
  for (const int other : {3, 2}) {
    const std::uint64_t offset = manager_->OffsetOf(hashes[other]);
    plan.push_back({.offset = offset,
                    .generation = 999,
                    .slot_checksum = manager_->ChecksumOf(hashes[other]),
                    .slot_bytes = slot,
                    .block = static_cast<std::uint32_t>(plan.size())});
  }
  AnswerAll(Command::kRestorePlan, AsBytes(plan));
  const auto outside = pages_.Block(12);
  const Completion done = Finished(StartRestore(GrantId(5), std::span(hashes).first(2), Ids(2, 10)).value()).value();
  EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kMismatch));
  EXPECT_EQ(pages_.Block(12), outside);
  manager_->SetScript(nullptr);
}

TEST_F(HostileManagerTest, ReservationsThatCannotBeAreRefusedAndAborted) {
  StartManager();
  Connect();
  const std::uint32_t slot = pages_.Layout().slot_bytes();
  const std::vector<wire::ReserveEntry> answers[] = {
      {},                                                  // no block
      {{0, 1, slot, 2}},                                   // too few
      {{0, 1, slot, 2}, {slot - 64, 2, slot, 2}},          // overlapping
      {{0, 1, slot, 2}, {0, 2, slot, 2}},                  // the same twice
      {{0, 1, slot, 2}, {slot * 2, 2, slot, 77}},          // an unknown word
      {{0, 1, slot, 2}, {(8U << 20U) - 64, 2, slot, 2}}};  // past the end
  pages_.Fill(4);
  std::vector<std::byte> pool(manager_->pool(), manager_->pool() + (8U << 20U));
  std::size_t bad = 0;
  for (const auto& answer : answers) {
    AnswerAll(Command::kPublishReserve, AsBytes(answer), AnswerStatus::kOk, 70 + bad);
    EXPECT_EQ(Publish(Hashes(2), Ids(2)).outcomes, Outcomes(2, Outcome::kLost));
    EXPECT_EQ(Counter("bad_answers"), ++bad);
    EXPECT_TRUE(manager_->Seen("PublishAbort", bad));
  }
  EXPECT_EQ(manager_->CountOf("PublishCommit"), 0U);
  EXPECT_EQ(std::memcmp(pool.data(), manager_->pool(), pool.size()), 0);
  manager_->SetScript(nullptr);
  ExpectWorking(5);
}

// Every command is answered with a random status, random numbers and random bytes.
TEST_F(HostileManagerTest, NoiseInAnswersFailsOperationsAndNothingElse) {
  options_.query_deadline_ms = 100;
  options_.load_deadline_ms = 100;
  options_.call_deadline_ms = 1000;
  StartManager();
  Connect();
  Prng prng(17);
  manager_->SetScript([&](ServerSession& session, const ReceivedRequest& request) {
    if (request.command == Command::kPing || prng.Below(4) == 0) return false;
    std::vector<std::byte> noise(prng.Below(3) == 0 ? 0 : prng.Below(2000));
    for (std::byte& b : noise) b = static_cast<std::byte>(prng.Next());
    const auto status = static_cast<AnswerStatus>(1 + prng.Below(14));
    if (status == AnswerStatus::kMoreChunks) return false;
    const std::uint64_t small = prng.Below(5);
    session.Answer(request.handle, status, prng.Below(2) == 0 ? prng.Next() : small,
                   prng.Below(2) == 0 ? prng.Next() : small, noise);
    return true;
  });
  pages_.Fill(6);
  std::vector<std::vector<std::byte>> outside;
  for (std::uint32_t block = 16; block < 32; ++block) outside.push_back(pages_.Block(block));
  for (std::uint64_t round = 0; round < 150; ++round) {
    const auto hashes = Hashes(3, 100 + round % 5);
    (void)client_->Publish({.hashes = hashes, .block_ids = Ids(3), .parent = {}});
    const std::uint64_t load_wait_ns = round % 2 * 1'000'000;
    const Query query{.request_id = "r", .hashes = hashes, .load_wait_ns = load_wait_ns};
    const auto answer = client_->Ask(query, 200'000'000).value();
    if (!answer) continue;
    EXPECT_LE(answer->found_blocks, 3U);
    const GrantId grant = answer->found_blocks > 0 ? Begin(*answer) : GrantId();
    const std::size_t count = std::max<std::size_t>(1, answer->found_blocks);
    const auto job = StartRestore(grant.is_none() ? GrantId(9) : grant, std::span(hashes).first(count),
                                  Ids(static_cast<std::uint32_t>(count), 8));
    if (job) {
      EXPECT_TRUE(Finished(*job));
    }
    (void)client_->Poll();
  }
  for (std::uint32_t block = 16; block < 32; ++block) EXPECT_EQ(pages_.Block(block), outside[block - 16]);
  manager_->SetScript(nullptr);
  ASSERT_TRUE(WaitForState(State::kUp));
  options_.query_deadline_ms = 20'000;
  options_.load_deadline_ms = 20'000;
  client_.reset();
  Connect();
  ExpectWorking(7);
}

// What a Manager's process could write into the session's memory by hand.
class RawAnswers {
 public:
  explicit RawAnswers(ServerSession& session)
      : memory_(os::Mapping::Map(session.session_fd(), geometry_.total_bytes(), os::Access::kReadWrite).value()) {}
  wire::SessionHeader& header() { return *reinterpret_cast<wire::SessionHeader*>(memory_.data()); }
  // The right answer to the last request.
  wire::Descriptor Right() {
    wire::Descriptor descriptor;
    const std::uint32_t at = (header().request_head.load() - 1) % geometry_.ring_entries;
    std::memcpy(&descriptor, memory_.data() + geometry_.request_ring_offset() + at * sizeof descriptor,
                sizeof descriptor);
    descriptor.op = static_cast<std::uint16_t>(AnswerStatus::kOk);
    descriptor.generation += 1;
    descriptor.flags = 0;
    descriptor.arena_length = 0;
    return descriptor;
  }
  void Push(const wire::Descriptor& descriptor) {
    const std::uint32_t head = header().answer_head.load();
    std::memcpy(memory_.data() + geometry_.answer_ring_offset() + head % geometry_.ring_entries * sizeof descriptor,
                &descriptor, sizeof descriptor);
    header().answer_head.store(head + 1);
  }

 private:
  wire::SessionGeometry geometry_;
  os::Mapping memory_;
};

TEST_F(HostileManagerTest, AnswersToNobodyAreDroppedAndABrokenRingIsLeft) {
  StartManager();
  Connect();
  const auto hashes = Hashes(2);
  std::atomic<bool> babbled{false};
  manager_->SetScript([&](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kQuerySubmit) return false;
    RawAnswers raw(session);
    const wire::Descriptor right = raw.Right();
    wire::Descriptor wrong = right;
    wrong.scalar0 = 5;  // a lease on two blocks, if anybody believed it
    wrong.scalar1 = 2;
    const auto push = [&](auto change) {
      wire::Descriptor descriptor = wrong;
      change(descriptor);
      raw.Push(descriptor);
    };
    push([](wire::Descriptor& d) { d.request_id += 1; });
    push([](wire::Descriptor& d) { d.request_id += 256; });  // the same place of the table
    push([](wire::Descriptor& d) { d.generation += 2; });
    push([](wire::Descriptor& d) { d.generation -= 1; });
    push([](wire::Descriptor& d) { d.session_epoch += 1; });
    push([](wire::Descriptor& d) { d.abi += 1; });
    push([](wire::Descriptor& d) { d.magic = 0; });
    push([](wire::Descriptor& d) { d.op = 999; });
    push([](wire::Descriptor& d) { d.arena_length = 1U << 20U; });  // longer than a slot
    push([](wire::Descriptor& d) {
      d.arena_offset = 0xffff0000U;  // outside the arena
      d.arena_length = 64;
    });
    session.FlushWake();
    babbled = true;
    return true;
  });
  EXPECT_FALSE(client_->Ask({.request_id = "r", .hashes = hashes}, 1'000'000).value());
  ASSERT_TRUE(Eventually([&] { return babbled.load(); }));
  EXPECT_FALSE(client_->Ask({.request_id = "r", .hashes = hashes}, 1'000'000).value());
  ASSERT_TRUE(client_->CancelQuery("r"));
  EXPECT_EQ(client_->state(), State::kUp);
  // Its own cursor did not count that: its next answer turns the ring back, which cannot be.
  manager_->SetScript(nullptr);
  (void)client_->Ask({.request_id = "s", .hashes = hashes}, 20 * kSecondNs);
  ASSERT_TRUE(Eventually([&] { return Counter("connects") == 2; }));
  ASSERT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  ExpectWorking(8);
}

TEST_F(HostileManagerTest, AnArenaRangeOfAnotherRequestFailsTheRequestAtOnce) {
  StartManager();
  Connect();
  manager_->SetScript([&](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kRestorePlan) return false;
    RawAnswers raw(session);
    wire::Descriptor other = raw.Right();
    other.arena_offset += 64U << 10U;
    other.arena_length = 64;
    raw.Push(other);
    session.FlushWake();
    return true;
  });
  const Completion done = Finished(StartRestore(GrantId(5), Hashes(1), Ids(1)).value()).value();
  EXPECT_FALSE(done.ok);
  manager_->SetScript(nullptr);
}

TEST_F(HostileManagerTest, RingsThatStayFullAreLeft) {
  options_.load_deadline_ms = 20;
  options_.query_deadline_ms = 10;
  options_.role = Role::kScheduler;
  StartManager();
  Connect();
  manager_->Hold(true);
  for (std::uint64_t i = 1; i <= 64; ++i) EXPECT_TRUE(client_->ReleaseGrant(GrantId(i)));
  const auto hashes = Hashes(1);
  std::optional<Answer> answer;
  const Query query{.request_id = "r", .hashes = hashes};
  ASSERT_TRUE(Eventually([&] { return (answer = client_->Ask(query, 1'000'000).value()).has_value(); }));
  EXPECT_EQ(answer->reason, AnswerReason::kTimedOut);
  ASSERT_TRUE(Eventually([&] { return Counter("connects") == 2; }));  // not even a ping fits in
  manager_->Hold(false);
  EXPECT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
}

// Listens where the Manager should and says what the test wants to each who connects.
class Impostor {
 public:
  explicit Impostor(const std::string& path) : path_(path), listener_(os::ListenUnix(path).value()) {}
  ~Impostor() { std::filesystem::remove(path_); }
  // The next client's connection.
  os::UniqueFd Accept() {
    while (os::WaitReadable(listener_.get(), os::DeadlineAfter(10 * kSecondNs))) {
      auto socket = os::AcceptUnix(listener_.get());
      if (socket && *socket) return std::move(**socket);
    }
    ADD_FAILURE() << "nobody came";
    return {};
  }
  bool AnybodyWithin(std::uint64_t ns) { return os::WaitReadable(listener_.get(), os::DeadlineAfter(ns)); }

 private:
  std::string path_;
  os::UniqueFd listener_;
};

TEST_F(HostileManagerTest, GarbageAtTheSocketIsRefusedAndARealManagerIsFoundLater) {
  options_.connect_deadline_ms = 50;
  {
    Impostor impostor(options_.socket_path);
    StartClient();
    ASSERT_TRUE(client_->RegisterLayout(pages_.Layout()));
    Prng prng(23);
    std::vector<std::vector<std::byte>> words;
    words.emplace_back();                                       // hangs up without a word
    words.push_back({std::byte{0xff}, std::byte{0xff}});        // half a length
    words.emplace_back(4);                                      // an empty frame
    words.emplace_back(4, std::byte{255});                      // 4 GiB to come
    words.push_back(wire::EncodeFrame(wire::Probe{}).value());  // a frame, but not that one
    wire::Welcome welcome{};                                    // without a single descriptor
    words.push_back(wire::EncodeFrame(welcome).value());
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> noise(4 + prng.Below(200));
      for (std::byte& b : noise) b = static_cast<std::byte>(prng.Next());
      const auto length = static_cast<std::uint32_t>(noise.size() - 4);
      std::memcpy(noise.data(), &length, sizeof length);
      words.push_back(std::move(noise));
    }
    for (const auto& word : words) {
      const os::UniqueFd socket = impostor.Accept();
      (void)os::SendAll(socket.get(), word, {}, os::DeadlineAfter(kSecondNs));
    }
    const os::UniqueFd silent = impostor.Accept();  // says nothing and stays
    const os::UniqueFd next = impostor.Accept();    // which is no reason to wait for ever
    EXPECT_EQ(client_->state(), State::kDown);
    EXPECT_EQ(Ask(Hashes(1)).reason, AnswerReason::kDown);
  }
  options_.connect_deadline_ms = 10'000;
  StartManager();
  ASSERT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  ExpectWorking(9);
}

TEST_F(HostileManagerTest, AManagerThatGoesAwayAtOnceIsNotAskedAgainAtOnce) {
  options_.min_backoff_ms = 60'000;
  options_.max_backoff_ms = 60'000;
  StartManager();
  Connect();
  manager_->Stop();
  ASSERT_TRUE(WaitForState(State::kDown));
  manager_.reset();
  Impostor impostor(options_.socket_path);
  EXPECT_FALSE(impostor.AnybodyWithin(50'000'000));
}

TEST_F(HostileManagerTest, AManagerThatStopsAfterTheLookUpFailsTheLoadLongBeforeItsDeadline) {
  StartManager();
  Connect();
  const auto hashes = Hashes(2);
  Publish(hashes, Ids(2));
  const GrantId grant = Begin(Ask(hashes));
  ASSERT_TRUE(manager_->Seen("RestoreBegin"));
  client_.reset();
  options_.query_deadline_ms = 10;
  options_.silent_load_ms = 20;
  Connect();
  manager_->Hold(true);
  const Completion done = Finished(StartRestore(grant, hashes, Ids(2, 4)).value()).value();  // 20 s were allowed
  EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kFailed));
  EXPECT_EQ(done.error, "the Manager does not answer");
  EXPECT_EQ(client_->state(), State::kSuspect);
  // Its question arms the pin after all, and the end behind it disarms it.
  manager_->Hold(false);
  EXPECT_TRUE(manager_->Seen("end failed"));
  EXPECT_EQ(manager_->grants(), 0U);
  EXPECT_TRUE(WaitForState(State::kUp));
}

}  // namespace
}  // namespace orbitkv::client
