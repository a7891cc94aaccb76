// The suite that every transfer backend passes, with the engine above it. A test file instantiates it:
//
//     INSTANTIATE_TEST_SUITE_P(File, TransferConformance, testing::Values(PortCase{"ring", make}), PortCaseName);
//
// Owns: the test's memory. Threads: the test's. Blocks: every wait has a deadline of a minute.
// Invariant: included by one file of a test program.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "orbitkv/orbite/engine.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/testing/faulty_port.h"

namespace orbitkv::orbite {

// A backend with one far side, number 0, of kFarBytes bytes.
class PortHarness {
 public:
  static constexpr std::uint64_t kFarBytes = 1 << 20;
  virtual ~PortHarness() = default;
  virtual Port& port() = 0;
  // Until there may be something to reap, or the deadline.
  virtual void Wait(std::uint64_t deadline_ns) = 0;
};

struct PortCase {
  std::string name;
  std::function<std::unique_ptr<PortHarness>()> make;  // null: this machine cannot
};
inline std::ostream& operator<<(std::ostream& out, const PortCase& port_case) { return out << port_case.name; }
inline std::string PortCaseName(const ::testing::TestParamInfo<PortCase>& info) { return info.param.name; }

class TransferConformance : public ::testing::TestWithParam<PortCase> {
 protected:
  static constexpr std::uint64_t kPage = 4096;
  static constexpr std::uint64_t kPages = 64;
  static constexpr OwnerId kOwner{1};
  static constexpr OwnerId kOther{2};

  void SetUp() override {
    harness_ = GetParam().make();
    if (harness_ == nullptr) GTEST_SKIP() << "not on this machine";
    faulty_ = std::make_unique<testing::FaultyPort>(harness_->port());
    engine_ = std::make_unique<Engine>(*faulty_);
    bytes_ = os::Mapping::Anonymous(kPages * kPage).value();
    memory_ = engine_->AddMemory(bytes_.bytes(), kOwner);
    far_ = engine_->AddFile(0, PortHarness::kFarBytes, kOwner);
  }
  void TearDown() override {
    if (engine_ == nullptr) return;
    faulty_->ReleaseHeld();
    Until([&] { return engine_->open_batches() == 0; });
  }

  std::span<std::byte> Page(std::uint64_t page) { return bytes_.bytes().subspan(page * kPage, kPage); }
  void Fill(std::uint64_t page, int value) { std::memset(Page(page).data(), value, kPage); }
  Range Out(std::uint64_t page, std::uint64_t far_page) const {
    return {{memory_, page * kPage}, {far_, far_page * kPage}, kPage};
  }
  Range In(std::uint64_t far_page, std::uint64_t page) const {
    return {{far_, far_page * kPage}, {memory_, page * kPage}, kPage};
  }
  Status Submit(std::uint64_t id, std::vector<Range> ranges, std::uint64_t deadline_ns = os::kNoDeadline) {
    return engine_->Submit({id, std::move(ranges), {}, deadline_ns}, now_ns_);
  }
  void Until(const std::function<bool()>& done) {
    const std::uint64_t deadline = os::MonotonicNs() + 60'000'000'000ULL;
    while (!done()) {
      ASSERT_LT(os::MonotonicNs(), deadline);
      engine_->Poll(now_ns_, seen_);
      if (!done()) harness_->Wait(os::MonotonicNs() + 10'000'000);
    }
  }
  // The one completion of this batch; an error when it is not drained or there are others.
  Status End(std::uint64_t id) {
    Until([&] { return std::ranges::any_of(seen_, [&](const Completion& c) { return c.id == id && c.drained; }); });
    Status status = Fail(Code::kNotFound, "no completion");
    for (const Completion& completion : seen_) {
      if (completion.id == id && completion.drained) status = completion.status;
    }
    EXPECT_EQ(std::ranges::count_if(seen_, [&](const Completion& c) { return c.id == id && c.drained; }), 1);
    return status;
  }
  std::size_t Seen(std::uint64_t id, bool drained) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(seen_, [&](const Completion& c) { return c.id == id && c.drained == drained; }));
  }
  void Hold() {
    faulty_->set_fault([](const Operation&) { return testing::Fault::kHold; });
  }

  std::unique_ptr<PortHarness> harness_;
  std::unique_ptr<testing::FaultyPort> faulty_;
  os::Mapping bytes_;
  std::unique_ptr<Engine> engine_;
  RegionId memory_;
  RegionId far_;
  std::uint64_t now_ns_ = 1000;
  std::vector<Completion> seen_;
};

TEST_P(TransferConformance, ManyRangesComeBackAsTheyWere) {
  std::vector<Range> out;
  for (std::uint64_t page = 0; page < 32; ++page) {
    Fill(page, static_cast<int>(page + 1));
    out.push_back(Out(page, page % 2 == 0 ? page : 100 + page));
  }
  ASSERT_TRUE(Submit(1, out));
  ASSERT_TRUE(End(1));
  std::vector<Range> in;
  for (std::uint64_t page = 0; page < 32; ++page) in.push_back(In(page % 2 == 0 ? page : 100 + page, 32 + page));
  ASSERT_TRUE(Submit(2, in));
  ASSERT_TRUE(End(2));
  for (std::uint64_t page = 0; page < 32; ++page) {
    EXPECT_EQ(std::memcmp(Page(page).data(), Page(32 + page).data(), kPage), 0) << page;
  }
  ASSERT_TRUE(engine_->Submit({3, {Out(0, 5)}, far_, os::kNoDeadline}, now_ns_));
  EXPECT_TRUE(End(3));
}

TEST_P(TransferConformance, MoreThanTheBackendTakesAtOnceEndsToo) {
  for (std::uint64_t id = 1; id <= 500; ++id) ASSERT_TRUE(Submit(id, {Out(id % kPages, id % 200)}));
  for (std::uint64_t id = 1; id <= 500; ++id) EXPECT_TRUE(End(id)) << id;
}

TEST_P(TransferConformance, RefusesWhatItCannotMove) {
  EXPECT_EQ(Submit(1, {}).error().code, Code::kInvalid);
  EXPECT_EQ(Submit(1, {{{memory_, 0}, {far_, PortHarness::kFarBytes - kPage + 512}, kPage}}).error().code,
            Code::kInvalid);
  EXPECT_EQ(Submit(1, {Out(0, 0), {{memory_, ~0ULL}, {far_, 0}, kPage}}).error().code, Code::kInvalid);
  EXPECT_EQ(Submit(1, {{{memory_, 0}, {memory_, kPage}, kPage}}).error().code, Code::kUnsupported);
  EXPECT_EQ(Submit(1, {Out(0, 0)}, now_ns_).error().code, Code::kTimedOut);
  EXPECT_EQ(engine_->open_batches(), 0U);
}

TEST_P(TransferConformance, ARemovedRegionTakesNothingNewAndLivesUntilItIsDrained) {
  Fill(0, 9);
  Hold();
  ASSERT_TRUE(Submit(1, {Out(0, 3)}));
  engine_->Remove(memory_);
  EXPECT_FALSE(engine_->Usable(memory_));
  EXPECT_FALSE(engine_->Gone(memory_));
  EXPECT_EQ(Submit(2, {Out(1, 4)}).error().code, Code::kStale);
  faulty_->set_fault({});
  faulty_->ReleaseHeld();
  EXPECT_TRUE(End(1));
  EXPECT_TRUE(engine_->Gone(memory_));
  // Its place is taken again, under another generation: the old name stays dead.
  const RegionId old = memory_;
  memory_ = engine_->AddMemory(bytes_.bytes(), kOwner);
  EXPECT_EQ(memory_.index, old.index);
  EXPECT_FALSE(engine_->Usable(old));
  ASSERT_TRUE(Submit(3, {In(3, 1)}));
  ASSERT_TRUE(End(3));
  EXPECT_EQ(Page(1)[0], std::byte{9});
}

TEST_P(TransferConformance, CancelBeginsNothingNewAndDrains) {
  const RegionId other = engine_->AddMemory(Page(10), kOther);
  int started = 0;
  faulty_->set_fault([&](const Operation&) { return ++started == 1 ? testing::Fault::kHold : testing::Fault::kNone; });
  ASSERT_TRUE(Submit(1, {Out(0, 0)}));
  engine_->Cancel(kOwner);
  EXPECT_FALSE(engine_->Usable(far_));
  engine_->Poll(now_ns_, seen_);
  EXPECT_EQ(Seen(1, false), 1U);
  EXPECT_EQ(Seen(1, true), 0U);
  EXPECT_FALSE(engine_->Gone(memory_));
  EXPECT_EQ(Submit(2, {Out(1, 1)}).error().code, Code::kStale);
  EXPECT_TRUE(engine_->Usable(other));
  faulty_->ReleaseHeld();
  EXPECT_EQ(End(1).error().code, Code::kCancelled);
  EXPECT_EQ(started, 1);
  EXPECT_TRUE(engine_->Gone(memory_));
  EXPECT_TRUE(engine_->Gone(far_));
}

TEST_P(TransferConformance, ADeadlineFailsBeforeItDrains) {
  Hold();
  ASSERT_TRUE(Submit(1, {Out(0, 0)}, now_ns_ + 50));
  EXPECT_EQ(engine_->next_deadline_ns(), now_ns_ + 50);
  engine_->Poll(now_ns_, seen_);
  EXPECT_TRUE(seen_.empty());
  now_ns_ += 50;
  engine_->Poll(now_ns_, seen_);
  engine_->Poll(now_ns_, seen_);
  ASSERT_EQ(Seen(1, false), 1U);
  EXPECT_EQ(seen_[0].status.error().code, Code::kTimedOut);
  EXPECT_EQ(Seen(1, true), 0U);
  faulty_->ReleaseHeld();
  EXPECT_EQ(End(1).error().code, Code::kTimedOut);
}

TEST_P(TransferConformance, WhatIsReportedOfAnEarlierBatchIsDropped) {
  ASSERT_TRUE(Submit(1, {Out(0, 0)}));
  ASSERT_TRUE(End(1));
  Hold();
  ASSERT_TRUE(Submit(2, {Out(1, 1)}));
  faulty_->RepeatLast();
  engine_->Poll(now_ns_, seen_);
  EXPECT_EQ(Seen(2, true), 0U);
  EXPECT_EQ(engine_->late_outcomes(), 1U);
  faulty_->ReleaseHeld();
  EXPECT_TRUE(End(2));
}

TEST_P(TransferConformance, FaultsFailTheBatchAndNothingElse) {
  using testing::Fault;
  const std::vector<std::pair<Fault, Code>> cases = {{Fault::kIoError, Code::kIo},
                                                     {Fault::kNoSpace, Code::kExhausted},
                                                     {Fault::kGone, Code::kUnavailable},
                                                     {Fault::kReadOnly, Code::kIo},
                                                     {Fault::kShort, Code::kIo}};
  std::uint64_t id = 1;
  for (const auto& [fault, code] : cases) {
    faulty_->set_fault([wrong = fault](const Operation& o) { return o.offset == kPage ? wrong : Fault::kNone; });
    ASSERT_TRUE(Submit(id, {Out(0, 1), Out(1, 8)}));
    ASSERT_TRUE(Submit(id + 1, {Out(2, 20)}));
    EXPECT_EQ(End(id).error().code, code);
    EXPECT_TRUE(End(id + 1));
    id += 2;
  }
  faulty_->set_fault({});
}

TEST_P(TransferConformance, ASyncIsNotBegunWhenAWriteFailed) {
  int syncs = 0;
  faulty_->set_fault([&](const Operation& operation) {
    if (operation.kind == OperationKind::kSync) ++syncs;
    return operation.offset == kPage ? testing::Fault::kIoError : testing::Fault::kNone;
  });
  ASSERT_TRUE(engine_->Submit({1, {Out(0, 0), Out(1, 1), Out(2, 9)}, far_, os::kNoDeadline}, now_ns_));
  ASSERT_TRUE(engine_->Submit({2, {Out(0, 5)}, far_, os::kNoDeadline}, now_ns_));
  EXPECT_TRUE(End(1));
  EXPECT_TRUE(End(2));
  EXPECT_EQ(syncs, 2);
  ASSERT_TRUE(engine_->Submit({3, {Out(1, 1), Out(2, 9)}, far_, os::kNoDeadline}, now_ns_));
  EXPECT_EQ(End(3).error().code, Code::kIo);
  EXPECT_EQ(syncs, 2);
}

}  // namespace orbitkv::orbite
