// Random engines against a model: sessions come and go, ask, wait for loads, restore, publish, die at any point. After
// every step the model's pins, slots and ranks are exactly those that the service and the cache report, bytes are
// served only under the checksum that their writer committed, and nobody is handed a slot that another one reads or
// writes.
#include <map>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/service/model_parts.h"
#include "orbitkv/service/test_engine.h"
#include "orbitkv/testing/effort.h"
#include "orbitkv/testing/ram_source.h"

namespace orbitkv::service {
namespace {

class Model {
 public:
  explicit Model(std::uint64_t seed) : prng_(seed), world_(Options()) { world_.service().SetSource(&source_); }

  void Step() {
    switch (prng_.Below(24)) {
      case 0: Join(); break;
      case 1: Leave(); break;
      case 2: world_.Advance(prng_.Below(prng_.Below(4) == 0 ? 15 * kSecond : 2 * kSecond)); break;
      case 3:
      case 4:
      case 5: Reserve(); break;
      case 6:
      case 7:
      case 8: Commit(); break;
      case 9: Abort(); break;
      case 10:
      case 11: BeginRestore(); break;
      case 12:
      case 13: Plan(); break;
      case 14: EndRank(); break;
      case 16: Save(); break;
      case 17:
      case 18: Submit(); break;
      case 19:
      case 20: Poll(); break;
      case 21: CancelOrClaim(); break;
      case 22: Work(); break;
      case 23: Load(); break;
      default: ReleaseOrVerify(); break;
    }
  }

  void Check() {
    const Gauges gauges = world_.service().gauges();
    std::uint64_t slots = 0;
    for (const Writing& writing : writing_) slots += OpenSlots(writing);
    ASSERT_EQ(gauges.reserved_slots, slots);
    ASSERT_EQ(gauges.reservations, writing_.size());
    ASSERT_EQ(world_.cache().gauges().reserved_slots, slots + gauges.loads);
    ASSERT_EQ(gauges.loads, reading_.size());
    ASSERT_LE(gauges.tickets, waiting_.size());
    ASSERT_LE(gauges.load_bytes, world_.service().limits().load_bytes() + world_.slot_bytes() * 2);
    std::uint64_t armed = 0;
    for (const auto& [grant, restore] : restores_) {
      for (const auto& [rank, session] : restore.open) armed += session.is_none() ? 0 : 1;
    }
    ASSERT_EQ(gauges.grants, restores_.size());
    ASSERT_EQ(gauges.armed_ranks, armed);
    ASSERT_EQ(gauges.sessions, peers_.size());
    // The verifier holds one pin per block; a block may have several open requests.
    std::uint64_t granted = 0;
    for (const auto& [grant, restore] : restores_) granted += restore.blocks;
    ASSERT_GE(world_.cache().gauges().granted_pins, granted);
    ASSERT_LE(world_.cache().gauges().granted_pins, granted + gauges.verifications);
    if (gauges.leases + gauges.tickets == 0) {
      ASSERT_EQ(world_.cache().gauges().found_pins, 0U);
    }
    CheckSlots();
  }

  void Finish() {
    world_.EndAllSessions();
    while (world_.service().Work(world_.now())) {
    }
    TakeLoads();
    while (!reading_.empty()) Load();
    for (const VerifyRequest& request : verifying_) world_.service().VerifyDone(request.id, true, world_.now());
    world_.ExpectQuiet();
  }
  std::uint64_t trace() const { return trace_; }
  const Counters& counters() { return world_.service().counters(); }

 private:
  static WorldOptions Options() {
    WorldOptions options;
    options.page_bytes = 32 * 1024;
    options.pool_bytes = 8 * kMiB;  // about 120 slots: there is never enough
    options.max_blocks = 256;
    options.limits.max_sessions = 12;
    options.limits.operations_per_session = 6;
    options.limits.operations_total = 20;
    options.limits.grants_per_instance = 6;
    options.limits.verifications = 4;
    options.limits.tombstones = 5;
    options.limits.warm_ups = 2;
    options.limits.step_hashes = 5;
    return options;
  }

  void Note(std::uint64_t value) { trace_ = (trace_ ^ value) * 0x100000001b3ULL; }
  Peer* AnyPeer(bool attached = true) {
    if (peers_.empty()) return nullptr;
    Peer& peer = peers_[prng_.Below(peers_.size())];
    return attached && peer.detached ? nullptr : &peer;
  }
  std::vector<state::BlockHash> AnyChain() {
    // Chains share their prefix with others of the same family.
    const std::uint64_t family = prng_.Below(4);
    std::vector<state::BlockHash> chain = Chain(family, 4 + prng_.Below(12));
    if (prng_.Below(3) == 0) {
      const auto branch = Chain(100 + family * 10 + prng_.Below(4), 16);
      for (std::size_t i = 3; i < chain.size(); ++i) chain[i] = branch[i];
    }
    return chain;
  }
  std::uint64_t ContentOf(const Peer& peer, const state::BlockHash& hash) const {
    return ChecksumOf(hash, peer.rank) + (engines_[peer.engine].other_model ? 1000U : 0U) + engines_[peer.engine].world;
  }
  static bool IsSlot(const wire::ReserveEntry& entry) {
    return entry.status == static_cast<std::uint32_t>(wire::ReserveStatus::kSlot);
  }
  static std::uint64_t OpenSlots(const Writing& writing) {
    return static_cast<std::uint64_t>(std::ranges::count_if(writing.entries, IsSlot));
  }

  void Join() {
    const std::size_t engine = prng_.Below(engines_.size());
    const Engine& kind = engines_[engine];
    const auto rank = static_cast<std::uint32_t>(prng_.Below(kind.world));
    if (peers_.size() >= 12) return;
    peers_.push_back({world_.Join(RegistrationOf(engine, rank)), engine, rank, false});
  }
  Registration RegistrationOf(std::size_t engine, std::uint32_t rank) const {
    const Engine& kind = engines_[engine];
    Registration registration = world_.Worker(kind.name, rank, kind.world, rank, kind.world);
    registration.role = Role::kBoth;
    if (kind.other_model) registration.computation = DigestOfByte(77);
    return registration;
  }

  void Leave() {
    Peer* peer = AnyPeer(false);
    if (peer == nullptr) return;
    if (!peer->detached && prng_.Below(2) == 0) {
      world_.service().DetachSession(peer->id, world_.now());
      peer->detached = true;
      std::erase_if(waiting_, [gone = peer->id](const Waiting& waiting) { return waiting.session == gone; });
      return;
    }
    const SessionId gone = peer->id;
    world_.End(gone);
    std::erase_if(peers_, [gone](const Peer& other) { return other.id == gone; });
    std::erase_if(writing_, [gone](const Writing& writing) { return writing.session == gone; });
    std::erase_if(waiting_, [gone](const Waiting& waiting) { return waiting.session == gone; });
    for (auto& [grant, restore] : restores_) {
      std::erase_if(restore.open, [gone, beginner = restore.beginner](const auto& pin) {
        return pin.second == gone || (beginner == gone && pin.second.is_none());
      });
    }
    DropEndedRestores();
  }
  void DropEndedRestores() {
    std::erase_if(restores_, [](const auto& restore) { return restore.second.open.empty(); });
  }

  void Reserve() {
    const Peer* peer = AnyPeer();
    if (peer == nullptr) return;
    const auto chain = AnyChain();
    const Result<ReserveOutcome> outcome = world_.TryReserve(peer->id, chain, peer->rank);
    ASSERT_TRUE(outcome.has_value()) << ToString(outcome.error());
    Writing writing{peer->id, peer->rank, outcome->reservation, chain, world_.entries()};
    ASSERT_EQ(OpenSlots(writing) > 0, !outcome->reservation.is_none());
    bool stopped = false;
    for (const wire::ReserveEntry& entry : writing.entries) {
      Note(entry.status * 7 + entry.offset);
      ASSERT_FALSE(stopped && entry.status != static_cast<std::uint32_t>(wire::ReserveStatus::kNotNow));
      stopped = stopped || entry.status == static_cast<std::uint32_t>(wire::ReserveStatus::kNotNow);
      ASSERT_TRUE(!IsSlot(entry) || generations_.insert(entry.generation).second) << "a generation came twice";
    }
    if (!outcome->reservation.is_none()) writing_.push_back(std::move(writing));
  }

  void Commit() {
    if (writing_.empty()) return;
    Writing& writing = writing_[prng_.Below(writing_.size())];
    const auto peer = std::ranges::find(peers_, writing.session, &Peer::id);
    if (peer->detached) return;
    std::vector<wire::CommitEntry> commits;
    for (std::uint32_t i = 0; i < writing.entries.size(); ++i) {
      if (!IsSlot(writing.entries[i])) continue;
      const std::uint64_t checksum = ContentOf(*peer, writing.hashes[i]);
      commits.push_back({checksum, writing.entries[i].generation, i, 0});
      committed_[writing.entries[i].generation] = checksum;
      writing.entries[i].status = 0;
      if (prng_.Below(4) == 0) break;
    }
    std::vector<std::uint32_t> outcomes;
    ASSERT_TRUE(world_.service()
                    .PublishCommit(writing.session, writing.id, {.entries = commits}, world_.now(), outcomes)
                    .has_value());
    for (const std::uint32_t outcome : outcomes) Note(outcome);
    std::erase_if(writing_, [](const Writing& open) { return OpenSlots(open) == 0; });
  }

  void Abort() {
    if (writing_.empty()) return;
    const std::size_t index = prng_.Below(writing_.size());
    const Status aborted = world_.service().PublishAbort(writing_[index].session, writing_[index].id, world_.now());
    if (aborted) writing_.erase(writing_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void BeginRestore() {
    const Peer* peer = AnyPeer();
    if (peer == nullptr) return;
    const auto chain = AnyChain();
    const Result<QueryOutcome> answer = world_.TryQuery(peer->id, prng_.Below(5), chain);
    if (!answer) return;
    Note(answer->found_blocks);
    if (answer->lease.is_none()) return;
    leases_.emplace_back(peer->engine, answer->lease);
    // Now and then a begin comes late, for an answer of long ago.
    LeaseId lease = answer->lease;
    if (prng_.Below(3) == 0) {
      const auto& [engine, old] = leases_[leases_.size() - 1 - prng_.Below(std::min<std::size_t>(leases_.size(), 8))];
      if (engine == peer->engine) lease = old;
    }
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < engines_[peer->engine].world; ++rank) {
      if (prng_.Below(4) != 0) ranks.push_back(rank);
    }
    const auto blocks = static_cast<std::uint32_t>(1 + prng_.Below(answer->found_blocks));
    const std::uint64_t grant = prng_.Below(1000);
    const Status begun = world_.Begin(peer->id, lease, blocks, ranks, grant);
    Note(begun ? 1 : 100 + static_cast<std::uint64_t>(begun.error().code));
    if (!begun) return;
    Restore restore{.engine = peer->engine, .beginner = peer->id, .blocks = blocks, .open = {}, .plans = {}};
    for (const std::uint32_t rank : ranks) {
      restore.open[rank] = SessionId();
      ASSERT_TRUE(std::ranges::any_of(peers_, [&](const Peer& other) {
        return !other.detached && other.engine == peer->engine && other.rank == rank;
      })) << "granted to a rank without a live session";
    }
    ASSERT_TRUE(restores_.emplace(std::pair(peer->engine, grant), restore).second) << "a grant id was taken twice";
  }

  // What the source has of some chain.
  void Save() {
    const Peer* peer = AnyPeer();
    if (peer == nullptr) return;
    const Engine& engine = engines_[peer->engine];
    const RegisterOutcome outcome =
        world_.service().Register(peer->id, RegistrationOf(peer->engine, peer->rank), world_.now());
    if (!outcome.namespace_ready) return;
    const auto chain = AnyChain();
    const std::size_t first = prng_.Below(4) == 0 ? prng_.Below(chain.size()) : 0;
    for (std::size_t i = first; i < chain.size(); ++i) {
      for (std::uint32_t shard = 0; shard < engine.world; ++shard) {
        SourceRecord record{.depth = static_cast<std::uint32_t>(i),
                            .checksum = ContentOf({.engine = peer->engine, .rank = shard}, chain[i])};
        if (i > 0) record.parent = chain[i - 1];
        const ComponentKey key{{outcome.namespace_digest, chain[i], 0, shard}, world_.slot_bytes()};
        source_.Put(key, record);
        if (prng_.Below(40) == 0) source_.Erase(key);
      }
    }
  }

  void Submit() {
    const Peer* peer = AnyPeer();
    if (peer == nullptr) return;
    constexpr wire::QueryMode kModes[] = {wire::QueryMode::kLeasedRead, wire::QueryMode::kLeasedRead,
                                          wire::QueryMode::kFullPrefix, wire::QueryMode::kDiscovery,
                                          wire::QueryMode::kSelected,   wire::QueryMode::kWarmUp,
                                          wire::QueryMode::kPrepare};
    const auto chain = AnyChain();
    std::vector<wire::HashView> views;
    wire::QueryView view;
    view.hashes = chain;
    view.header.mode = kModes[prng_.Below(std::size(kModes))];
    view.header.request_key_lo = prng_.Below(5);
    view.header.wait_ns = prng_.Below(4) * 2 * kSecond;
    if (view.header.mode == wire::QueryMode::kPrepare) view.header.consumer_key_lo = 1 + prng_.Below(3);
    if (view.header.mode == wire::QueryMode::kSelected) {
      const auto at = static_cast<std::uint32_t>(prng_.Below(chain.size()));
      views.push_back({.first = at, .count = static_cast<std::uint32_t>(1 + prng_.Below(chain.size() - at))});
      view.views = views;
    }
    Ticket ticket{.operation = ++operations_[peer->id], .revision = 1};
    // Now and then what is asked for is replaced, or an old number comes again.
    auto replaced = waiting_.end();
    if (!waiting_.empty() && prng_.Below(3) == 0) {
      replaced = waiting_.begin() + static_cast<std::ptrdiff_t>(prng_.Below(waiting_.size()));
      if (replaced->session != peer->id) return;
      ticket = replaced->ticket;
      ticket.revision += static_cast<std::uint32_t>(prng_.Below(3));
    }
    Result<QueryOutcome> outcome = world_.service().StartQuery(peer->id, view, world_.now(), ticket);
    while (outcome && outcome->more) outcome = world_.service().ContinueQuery(peer->id, world_.now());
    Note(outcome ? outcome->found_blocks : 50 + static_cast<std::uint64_t>(outcome.error().code));
    if (!outcome) return;
    if (replaced != waiting_.end()) waiting_.erase(replaced);
    if (outcome->loading) {
      waiting_.push_back({peer->id, peer->engine, ticket, view.header.mode == wire::QueryMode::kPrepare});
    } else if (!outcome->lease.is_none()) {
      leases_.emplace_back(peer->engine, outcome->lease);
    }
  }

  void Poll() {
    if (waiting_.empty()) return;
    const std::size_t index = prng_.Below(waiting_.size());
    const Waiting waiting = waiting_[index];
    wire::PollRequest request{.operation = waiting.ticket.operation, .revision = waiting.ticket.revision};
    const bool stale = prng_.Below(8) == 0;
    if (stale) ++request.revision;
    std::vector<wire::PollEntry> entries;
    std::vector<std::uint32_t> boundaries;
    ASSERT_TRUE(world_.service()
                    .PollQueries(waiting.session, std::span(&request, 1), world_.now(), entries, boundaries)
                    .has_value());
    const auto state = static_cast<wire::TicketState>(entries.at(0).state);
    Note(entries[0].state * 100 + entries[0].found);
    if (stale) {
      // Unknown: it ended so long ago that even that is forgotten.
      ASSERT_TRUE(state == wire::TicketState::kStaleRevision || state == wire::TicketState::kUnknown);
      return;
    }
    if (state == wire::TicketState::kLoading) return;
    ASSERT_NE(state, wire::TicketState::kStaleRevision);
    if (state == wire::TicketState::kReady && waiting.prepared) return;
    if (state == wire::TicketState::kReady && entries[0].lease != 0) {
      ASSERT_GT(entries[0].found, 0U);
      leases_.emplace_back(waiting.engine, LeaseId(entries[0].lease));
    }
    ++told_;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void CancelOrClaim() {
    const Peer* peer = AnyPeer();
    if (peer == nullptr) return;
    if (prng_.Below(2) == 0) {
      const wire::ClaimRequest claim{.consumer_key_lo = 1 + prng_.Below(3), .revision = 1};
      const auto claimed = world_.service().ClaimQuery(peer->id, claim, world_.now());
      Note(claimed ? claimed->found_blocks : 70);
      if (claimed && !claimed->lease.is_none()) leases_.emplace_back(peer->engine, claimed->lease);
      return;
    }
    const auto waiting = std::ranges::find(waiting_, peer->id, &Waiting::session);
    if (waiting == waiting_.end()) return;
    const Status cancelled = world_.service().CancelQuery(peer->id, waiting->ticket, world_.now());
    ASSERT_TRUE(cancelled || cancelled.error().code == Code::kNotFound);
    waiting_.erase(waiting);
  }

  void TakeLoads() {
    for (const LoadRequest& request : world_.service().TakeLoads()) {
      ASSERT_TRUE(generations_.insert(request.generation).second) << "a generation came twice";
      reading_.push_back(request);
    }
  }
  void Work() {
    world_.service().Work(world_.now());
    TakeLoads();
    for (const SessionId session : world_.service().TakeCompleted()) {
      ASSERT_TRUE(std::ranges::any_of(peers_, [session](const Peer& peer) { return peer.id == session; }));
    }
  }
  // One read ends, in whatever order.
  void Load() {
    TakeLoads();
    if (reading_.empty()) return;
    const std::size_t index = prng_.Below(reading_.size());
    const LoadRequest request = reading_[index];
    reading_.erase(reading_.begin() + static_cast<std::ptrdiff_t>(index));
    source_.Submit(request, world_.now());
    for (const auto& done : source_.Step(world_.now())) {
      const bool wrong = prng_.Below(10) == 0;
      const std::uint64_t checksum = done.checksum + (wrong ? 1 : 0);
      if (done.result == LoadResult::kOk && !wrong) committed_[request.generation] = checksum;
      world_.service().LoadDone(done.id, done.result, checksum, world_.now());
    }
  }

  // Mostly a grant of the peer's engine, sometimes any number.
  std::uint64_t AnyGrant(const Peer& peer) {
    std::vector<std::uint64_t> grants;
    for (const auto& [key, restore] : restores_) {
      if (key.first == peer.engine) grants.push_back(key.second);
    }
    return grants.empty() || prng_.Below(8) == 0 ? prng_.Below(1000) : grants[prng_.Below(grants.size())];
  }

  void Plan() {
    const Peer* peer = AnyPeer();
    if (peer == nullptr) return;
    const std::uint64_t grant = AnyGrant(*peer);
    std::vector<wire::PlanEntry> plan;
    const Result<PlanStatus> status =
        world_.service().RestorePlan(peer->id, GrantId(grant), Rank(peer->rank), world_.now(), plan);
    Note(status ? static_cast<std::uint64_t>(*status) : 9);
    const auto found = restores_.find({peer->engine, grant});
    if (found == restores_.end() || !found->second.open.contains(peer->rank)) {
      ASSERT_TRUE(status.has_value() && (*status == PlanStatus::kNotYet || *status == PlanStatus::kGone));
      return;
    }
    SessionId& armed_by = found->second.open[peer->rank];
    if (!armed_by.is_none() && armed_by != peer->id) {
      ASSERT_EQ(CodeOf(status), Code::kRefused);
      return;
    }
    ASSERT_TRUE(status.has_value());
    if (*status == PlanStatus::kCorrupt) {
      if (armed_by.is_none()) found->second.open.erase(peer->rank);
      DropEndedRestores();
      return;
    }
    ASSERT_EQ(*status, PlanStatus::kArmed);
    armed_by = peer->id;
    ASSERT_EQ(plan.size(), found->second.blocks);
    for (const wire::PlanEntry& entry : plan) {
      const auto content = committed_.find(entry.generation);
      ASSERT_TRUE(content != committed_.end()) << "a slot that nobody committed";
      ASSERT_EQ(content->second, entry.slot_checksum);
    }
    found->second.plans[peer->rank] = plan;
  }

  void EndRank() {
    const Peer* peer = AnyPeer();
    if (peer == nullptr) return;
    const auto found = restores_.find({peer->engine, AnyGrant(*peer)});
    if (found == restores_.end()) return;
    std::vector<std::uint32_t> indices;
    if (prng_.Below(4) == 0) indices.push_back(static_cast<std::uint32_t>(prng_.Below(found->second.blocks)));
    const auto plan = found->second.plans.find(peer->rank);
    if (!indices.empty() && plan != found->second.plans.end() && prng_.Below(4) != 0) {
      const wire::EndEntry named{.generation = plan->second[indices[0]].generation, .index = indices[0]};
      ASSERT_TRUE(world_.EndNaming(peer->id, found->first.second, peer->rank, std::span(&named, 1)).has_value());
    } else {
      const auto result = indices.empty() ? wire::EndResult::kOk : wire::EndResult::kMismatch;
      ASSERT_TRUE(world_.End(peer->id, found->first.second, peer->rank, result, indices).has_value());
    }
    found->second.open.erase(peer->rank);
    DropEndedRestores();
  }

  void ReleaseOrVerify() {
    for (const VerifyRequest& request : world_.service().TakeVerifyRequests()) verifying_.push_back(request);
    if (!verifying_.empty() && prng_.Below(2) == 0) {
      ASSERT_EQ(committed_.at(verifying_.front().generation), verifying_.front().slot_checksum);
      world_.service().VerifyDone(verifying_.front().id, prng_.Below(2) == 0, world_.now());
      verifying_.erase(verifying_.begin());
      return;
    }
    const Peer* peer = AnyPeer();
    if (peer == nullptr) return;
    const auto found = restores_.find({peer->engine, AnyGrant(*peer)});
    if (found == restores_.end()) return;
    ASSERT_TRUE(world_.ReleaseGrant(peer->id, found->first.second).has_value());
    std::erase_if(found->second.open, [](const auto& pin) { return pin.second.is_none(); });
    DropEndedRestores();
  }

  // Slots that an armed rank reads and slots that are being written are all different.
  void CheckSlots() {
    std::map<std::uint64_t, std::uint64_t> read;  // offset -> generation
    for (const auto& [grant, restore] : restores_) {
      for (const auto& [rank, plan] : restore.plans) {
        if (!restore.open.contains(rank)) continue;
        for (const wire::PlanEntry& entry : plan) {
          const auto [at, inserted] = read.emplace(entry.offset, entry.generation);
          ASSERT_TRUE(inserted || at->second == entry.generation) << "two slots at one place";
        }
      }
    }
    std::set<std::uint64_t> written;
    for (const Writing& writing : writing_) {
      for (const wire::ReserveEntry& entry : writing.entries) {
        if (!IsSlot(entry)) continue;
        ASSERT_TRUE(written.insert(entry.offset).second) << "two writers of one slot";
        ASSERT_FALSE(read.contains(entry.offset)) << "a slot is written while a rank reads it";
      }
    }
    for (const LoadRequest& request : reading_) {
      ASSERT_TRUE(written.insert(request.offset).second) << "two writers of one slot";
      ASSERT_FALSE(read.contains(request.offset)) << "a slot is loaded while a rank reads it";
    }
  }

  Prng prng_;
  ::orbitkv::testing::RamSource source_;
  World world_;
  std::vector<Engine> engines_ = {{"one", 1, false}, {"two", 2, false}, {"twin", 1, false}, {"other", 1, true}};
  std::vector<Peer> peers_;
  std::vector<Writing> writing_;
  std::map<std::pair<std::size_t, std::uint64_t>, Restore> restores_;
  std::vector<std::pair<std::size_t, LeaseId>> leases_;  // with the engine that was answered
  std::vector<Waiting> waiting_;
  std::map<SessionId, std::uint64_t> operations_;  // the highest number that was used
  std::vector<LoadRequest> reading_;
  std::uint64_t told_ = 0;
  std::vector<VerifyRequest> verifying_;
  std::map<std::uint64_t, std::uint64_t> committed_;  // generation -> checksum
  std::set<std::uint64_t> generations_;
  std::uint64_t trace_ = 0xcbf29ce484222325ULL;
};

std::uint64_t Live(std::uint64_t seed, std::uint64_t steps, Counters* counters = nullptr) {
  Model model(seed);
  for (std::uint64_t step = 0; step < steps; ++step) {
    model.Step();
    if (!::testing::Test::HasFatalFailure()) model.Check();
    if (::testing::Test::HasFatalFailure()) {
      ADD_FAILURE() << "seed " << seed << ", step " << step;
      return 0;
    }
  }
  model.Finish();
  if (counters != nullptr) *counters = model.counters();
  return model.trace();
}

TEST(ServiceModelTest, RandomEnginesAgreeWithTheModel) {
  Counters sum;
  const std::uint64_t first = testing::Seed();
  for (std::uint64_t seed = first; seed < first + testing::Effort(12, 10'000); ++seed) {
    Counters counters;
    Live(seed, 4500, &counters);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    sum.grants += counters.grants;
    sum.grants_late += counters.grants_late;
    sum.leases_revoked += counters.leases_revoked;
    sum.blocks_stored += counters.blocks_stored;
    sum.blocks_already_there += counters.blocks_already_there;
    sum.blocks_not_now += counters.blocks_not_now;
    sum.plans += counters.plans;
    sum.restores_mismatch += counters.restores_mismatch;
    sum.verified_different += counters.verified_different;
    sum.tickets += counters.tickets;
    sum.tickets_late += counters.tickets_late;
    sum.tickets_timed_out += counters.tickets_timed_out;
    sum.tickets_revoked += counters.tickets_revoked;
    sum.tickets_cancelled += counters.tickets_cancelled;
    sum.claims += counters.claims;
    sum.warm_up_blocks += counters.warm_up_blocks;
    sum.loads_ok += counters.loads_ok;
    sum.loads_mismatch += counters.loads_mismatch;
  }
  // The walk is worth something only if it went everywhere.
  EXPECT_GT(sum.grants, 500U);
  EXPECT_GT(sum.grants_late, 0U);
  EXPECT_GT(sum.leases_revoked, 0U);
  EXPECT_GT(sum.blocks_stored, 1000U);
  EXPECT_GT(sum.blocks_already_there, 10U);
  EXPECT_GT(sum.blocks_not_now, 100U);
  EXPECT_GT(sum.plans, 200U);
  EXPECT_GT(sum.restores_mismatch, 5U);
  EXPECT_GT(sum.verified_different, 0U);
  EXPECT_GT(sum.tickets, 500U);
  EXPECT_GT(sum.tickets_late, 50U);
  EXPECT_GT(sum.tickets_timed_out, 1U);
  EXPECT_GT(sum.tickets_revoked, 0U);
  EXPECT_GT(sum.tickets_cancelled, 50U);
  EXPECT_GT(sum.claims, 10U);
  EXPECT_GT(sum.warm_up_blocks, 20U);
  EXPECT_GT(sum.loads_ok, 1000U);
  EXPECT_GT(sum.loads_mismatch, 50U);
}

TEST(ServiceModelTest, TheSameSeedGivesTheSameLife) {
  EXPECT_EQ(Live(99, 2000), Live(99, 2000));
  EXPECT_NE(Live(99, 2000), Live(98, 2000));
}

}  // namespace
}  // namespace orbitkv::service
