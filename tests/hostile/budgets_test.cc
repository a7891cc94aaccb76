// Clients that take all they can get and give nothing back, that cry wolf, and that fork.
#include <algorithm>
#include <csignal>
#include <unistd.h>

#include "hostile_world.h"
#include "noise.h"
#include "raw_session.h"

#include "orbitkv/os/clock.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::hostile {
namespace {

using testing::Chain;
using testing::RawClient;

constexpr std::uint32_t kRankZero[] = {0};
constexpr std::uint32_t kStored = 900;  // a chain that the greedy one stores

class HostileBudgets : public HostileWorld {
 protected:
  // A registered client in the attacker's process, which ends by SIGKILL.
  RawClient* Greedy() {
    auto client = RawClient::Open(Options("greedy"));
    if (!client) return nullptr;
    RawClient* greedy = client->release();
    const auto stored = greedy->Publish(Chain(kStored, 8));
    return stored && *stored == 8 ? greedy : nullptr;
  }
};

TEST_F(HostileBudgets, LeasesUntilNoneIsGiven) {
  Attack([this](const auto& ready) {
    RawClient* greedy = Greedy();
    bool told = false;
    for (std::uint64_t request = 1; greedy != nullptr; ++request) {
      const auto query = greedy->Query(request, Chain(kStored, 8));
      if (query || query.error().code != Code::kBusy) continue;
      if (!std::exchange(told, true)) ready();
    }
  });
  ExerciseNeighbour(60);
  EXPECT_GT(Figure("orbitkv_queries_not_admitted_total"), 0);
  ExpectUnharmed();
}

TEST_F(HostileBudgets, GrantsUntilNoneIsGiven) {
  Attack([this](const auto& ready) {
    RawClient* greedy = Greedy();
    bool told = false;
    for (std::uint64_t request = 1; greedy != nullptr; ++request) {
      const auto query = greedy->Query(request, Chain(kStored, 8));
      if (!query) return;
      const Status begun = greedy->Begin(query->lease, GrantId(request), query->found, kRankZero);
      if (begun) {
        static_cast<void>(greedy->Plan(GrantId(request)));
      } else if (!std::exchange(told, true)) {
        ready();
      }
      // What could not be begun keeps a lease, which would be refused next.
      if (!begun) static_cast<void>(greedy->Release(wire::ReleaseKind::kLease, query->lease.value()));
    }
  });
  EXPECT_GE(Figure("orbitkv_grants"), 1000);
  EXPECT_GE(Figure("orbitkv_armed_ranks"), 1000);
  ExerciseNeighbour(60);
  ExpectUnharmed();
}

TEST_F(HostileBudgets, ReservationsUntilNoneIsGiven) {
  Attack([this](const auto& ready) {
    RawClient* greedy = Greedy();
    bool told = false;
    for (std::uint32_t chain = 1000; greedy != nullptr; ++chain) {
      const auto reserved = greedy->Reserve(Chain(chain, 64));
      const bool full = !reserved || std::ranges::any_of(reserved->entries, [](const wire::ReserveEntry& entry) {
        return entry.status == static_cast<std::uint32_t>(wire::ReserveStatus::kNotNow);
      });
      if (full && !std::exchange(told, true)) ready();
    }
  });
  // A quarter of the pool at most, whatever it asks for.
  EXPECT_GT(Figure("orbitkv_reserved_slot_bytes"), (8 << 20));
  EXPECT_LE(Figure("orbitkv_reserved_slot_bytes"), (16 << 20));
  EXPECT_GT(Figure("orbitkv_blocks_over_budget_total"), 0);
  ExerciseNeighbour(60);
  ExpectUnharmed();
}

TEST_F(HostileBudgets, FalseMismatchesDropNothing) {
  Attack([this](const auto& ready) {
    RawClient* liar = Greedy();
    for (std::uint64_t request = 1; liar != nullptr; ++request) {
      if (request == 20) ready();
      const auto query = liar->Query(request, Chain(kStored, 8));
      if (!query || query->found == 0) continue;
      if (!liar->Begin(query->lease, GrantId(request), query->found, kRankZero)) continue;
      if (!liar->Plan(GrantId(request))) return;
      std::vector<std::uint32_t> all(query->found);
      for (std::uint32_t i = 0; i < query->found; ++i) all[i] = i;
      if (!liar->End(GrantId(request), wire::EndResult::kMismatch, all)) return;
    }
  });
  ExerciseNeighbour(60);
  EXPECT_TRUE(integration::Eventually([&] { return Figure("orbitkv_verified_equal_total") >= 8; }));
  EXPECT_EQ(Figure("orbitkv_verified_different_total"), 0);
  ExpectUnharmed();
  EXPECT_EQ(neighbour_->Restore(100'000, Chain(kStored, 8), GrantId(100'000)).value(), 8U);
}

TEST_F(HostileBudgets, AForkedChildThatLivesOnKeepsNothingOfADeadParent) {
  Attack([this](const auto& ready) {
    auto session = RawSession::Connect(socket_);
    if (!session || !session->Register("forks")) return;
    const auto arguments = RawClient::QueryArguments(1, Chain(1, 4));
    if (!session->Call(session->WithArguments(wire::Command::kQuerySubmit, arguments))) return;
    if (::fork() != 0) {
      ready();
      ::raise(SIGKILL);
    }
    // The mapping is not inherited; the descriptors are.
    const std::uint64_t bytes = session->welcome().geometry.total_bytes();
    auto memory = os::Mapping::Map(session->session_fd(), bytes, os::Access::kReadWrite);
    Prng prng(6);
    const std::uint64_t end = os::DeadlineAfter(kRawNs);
    while (memory && os::MonotonicNs() < end) {
      Scribble(memory->bytes(), prng);
      session->RingDoorbell();
    }
    ::_exit(0);
  });
  EXPECT_TRUE(Becomes(*neighbour_, "orbitkv_sessions", 1));
  ExerciseNeighbour(60);
  EXPECT_EQ(ReadBooks().fds, before_.fds) << "while the child still lives";
  ExpectUnharmed();
}

}  // namespace
}  // namespace orbitkv::hostile
