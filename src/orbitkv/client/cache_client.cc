#include "orbitkv/client/cache_client.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "orbitkv/base/mutex.h"
#include "orbitkv/client/completions.h"
#include "orbitkv/client/link.h"
#include "orbitkv/client/page_generations.h"
#include "orbitkv/client/queries.h"
#include "orbitkv/copy/host_engine.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/fork_guard.h"
#include "orbitkv/os/random.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::client {
namespace {

constexpr std::uint64_t kNsPerMs = 1'000'000;

Result<std::unique_ptr<copy::CopyEngine>> MakeHostEngine(const ClientOptions& options) {
  copy::HostEngineOptions host;
  host.threads = options.copy_threads;
  if (host.threads == 0) host.threads = static_cast<std::uint32_t>(std::clamp(os::CpuCount(), 1, 2));
  host.cpus = options.copy_cpus;
  host.inline_restore_bytes = Restorer::kInlineBytes;
  ORBITKV_ASSIGN_OR_RETURN(std::unique_ptr<copy::HostCopyEngine> engine, copy::HostCopyEngine::Create(host));
  return engine;
}

}  // namespace

struct CacheClient::Parts {
  Parts(const ClientOptions& given, std::unique_ptr<copy::CopyEngine> copier)
      : options(given),
        engine(std::move(copier)),
        completions(options.max_jobs),
        link(options, counters),
        queries(options, link, counters),
        publisher(options, link, *engine, pages, completions, counters),
        restorer(options, link, *engine, pages, completions, counters) {}

  // Refuses what cannot work: after fork, after Stop, by the wrong role.
  Status Usable() const {
    if (fork.InChild()) {
      return Fail(Code::kRefused, "this client belongs to the process before fork; create a client in the child");
    }
    if (closed.load(std::memory_order_acquire)) return Fail(Code::kCancelled, "the client is closed");
    return {};
  }
  Status UsableByScheduler() const {
    ORBITKV_TRY(Usable());
    if (!options.asks()) return Fail(Code::kInvalid, "role worker does not ask; use role scheduler or both");
    return {};
  }
  Result<const EngineLayout*> UsableLayout() const ORBITKV_EXCLUDES(mutex) {
    ORBITKV_TRY(Usable());
    if (!options.moves_bytes()) return Fail(Code::kInvalid, "role scheduler moves no bytes; use role worker or both");
    const MutexLock lock(mutex);
    if (!layout) return Fail(Code::kInvalid, "no layout is registered; call register_layout first");
    return layout.get();
  }

  const ClientOptions options;
  const os::ForkGuard fork;
  Counters counters;
  std::atomic<bool> closed{false};
  std::atomic<bool> undrained{false};
  std::atomic<std::uint32_t> next_grant{1};
  std::uint64_t grant_prefix = 0;  // upper half of every grant id of this process

  mutable Mutex mutex;
  std::unique_ptr<EngineLayout> layout ORBITKV_GUARDED_BY(mutex);  // set once; jobs keep pointers to it
  bool started ORBITKV_GUARDED_BY(mutex) = false;

  // Stopped, then destroyed from the last to the first.
  std::unique_ptr<copy::CopyEngine> engine;
  PageGenerations pages;
  Completions completions;
  Link link;
  Queries queries;
  Publisher publisher;
  Restorer restorer;
};

CacheClient::CacheClient(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<CacheClient>> CacheClient::Create(const ClientOptions& options,
                                                         std::unique_ptr<copy::CopyEngine> engine) {
  ORBITKV_TRY(options.Validate());
  ClientOptions named = options;
  if (named.name.empty()) named.name = "orbitkv-client";
  if (engine == nullptr) {
    ORBITKV_ASSIGN_OR_RETURN(engine, MakeHostEngine(named));
  }
  auto parts = std::make_unique<Parts>(named, std::move(engine));
  ORBITKV_TRY(parts->completions.Open());
  std::uint32_t random = 0;
  ORBITKV_TRY(os::RandomBytes(std::as_writable_bytes(std::span(&random, 1))));
  parts->grant_prefix = std::uint64_t{random | 1U} << 32U;
  return std::unique_ptr<CacheClient>(new CacheClient(std::move(parts)));
}

CacheClient::~CacheClient() {
  if (parts_->fork.InChild()) {
    // Its threads do not exist here and its locks may be held for ever.
    (void)parts_.release();
    return;
  }
  if (!Stop()) KeepUntilExit(std::move(parts_));
}

// What a device may still use, and the callbacks that it would end with.
void CacheClient::KeepUntilExit(std::unique_ptr<Parts> parts) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<Parts>>();
  const MutexLock lock(mutex);
  kept->push_back(std::move(parts));
}

Status CacheClient::Start() {
  ORBITKV_TRY(parts_->Usable());
  Parts& p = *parts_;
  {
    const MutexLock lock(p.mutex);
    if (p.started) return {};
    p.started = true;
  }
  p.link.OnChange([&p] {
    p.publisher.Wake();
    p.restorer.Wake();
  });
  p.link.OnLateAnswer([&p](Life& life, const channel::LateAnswer& late) { p.queries.OnLateAnswer(life, late); });
  if (p.options.moves_bytes()) {
    ORBITKV_TRY(p.publisher.Start());
    ORBITKV_TRY(p.restorer.Start());
  }
  return p.link.Start();
}

Status CacheClient::Stop(std::uint64_t drain_deadline_ns) {
  if (parts_->fork.InChild()) return {};
  Parts& p = *parts_;
  if (!p.closed.exchange(true, std::memory_order_acq_rel)) {
    const Status saved = p.publisher.Stop(drain_deadline_ns);
    const Status loaded = p.restorer.Stop();
    p.undrained.store(!saved || !loaded, std::memory_order_release);
    p.link.Stop();
  }
  if (!p.undrained.load(std::memory_order_acquire)) return {};
  return Fail(Code::kIo, kUndrainedText);
}

bool CacheClient::forked() const { return parts_->fork.InChild(); }

State CacheClient::state() const { return parts_->Usable() ? parts_->link.state() : State::kDown; }

std::optional<Incarnation> CacheClient::incarnation() const {
  if (!parts_->Usable()) return std::nullopt;
  return parts_->link.incarnation();
}

Result<bool> CacheClient::WaitUp(std::uint64_t deadline_ns) {
  ORBITKV_TRY(parts_->Usable());
  return parts_->link.WaitUp(deadline_ns);
}

const ClientOptions& CacheClient::options() const { return parts_->options; }

Status CacheClient::RegisterLayout(Layout layout) {
  GroupLayouts one;
  one.groups.push_back(std::move(layout));
  return RegisterGroups(std::move(one));
}

Status CacheClient::RegisterGroups(GroupLayouts groups) {
  ORBITKV_TRY(parts_->Usable());
  Parts& p = *parts_;
  if (!p.options.moves_bytes()) {
    return Fail(Code::kInvalid, "role scheduler moves no bytes and has no layout; use role worker or both");
  }
  ORBITKV_ASSIGN_OR_RETURN(EngineLayout layout, EngineLayout::Compile(std::move(groups), p.options));
  std::vector<state::GroupShape> shapes = layout.shapes();
  {
    const MutexLock lock(p.mutex);
    if (p.layout != nullptr) {
      if (p.layout->Same(layout)) return {};
      return Fail(Code::kRefused, "another layout is registered already; create a new client for new pages");
    }
    p.layout = std::make_unique<EngineLayout>(std::move(layout));
  }
  p.link.SetGroups(std::move(shapes));
  return {};
}

Result<std::optional<Answer>> CacheClient::Ask(const Query& query, std::uint64_t wait_ns) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  if (query.mode == QueryMode::kWarmUp || query.mode == QueryMode::kPrepare) {
    return Fail(Code::kInvalid, "warm-up and preparation have calls of their own");
  }
  if ((query.mode == QueryMode::kSelected) == query.views.empty()) {
    return Fail(Code::kInvalid, "views belong to the mode selected, which needs at least one", query.views.size());
  }
  return parts_->queries.Ask(query, wait_ns);
}

Status CacheClient::WarmUp(const Query& query) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  return parts_->queries.WarmUp(query);
}

Result<TicketHandle> CacheClient::Prepare(const Query& query, std::string_view consumer) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  return parts_->queries.Prepare(query, consumer);
}

Status CacheClient::CancelPrepared(TicketHandle ticket) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  parts_->queries.CancelPrepared(ticket);
  return {};
}

Result<std::optional<Answer>> CacheClient::Claim(const ClaimRequest& claim, std::uint64_t wait_ns) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  if (claim.most_blocks == 0) return Fail(Code::kInvalid, "most_blocks must be at least 1");
  return parts_->queries.Claim(claim, wait_ns);
}

Status CacheClient::CancelQuery(std::string_view request_id) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  parts_->queries.Cancel(request_id);
  return {};
}

Result<GrantId> CacheClient::BeginRestore(LeaseHandle lease, std::uint32_t blocks,
                                          std::span<const std::uint32_t> ranks) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  Parts& p = *parts_;
  if (blocks == 0) return Fail(Code::kInvalid, "blocks must be at least 1");
  if (ranks.empty() || ranks.size() > p.options.world_size) {
    return Fail(Code::kInvalid, "ranks must name 1 to world_size ranks", ranks.size(), p.options.world_size);
  }
  for (const std::uint32_t rank : ranks) {
    if (rank >= p.options.world_size) {
      return Fail(Code::kInvalid, "a rank is not below world_size", rank, p.options.world_size);
    }
  }
  const LifePin life = p.link.Pin();
  const auto lease_id = life ? LeaseOf(*life, lease) : std::nullopt;
  if (!lease_id || p.link.state() != State::kUp) {
    Count(p.counters.restores_not_begun);
    return GrantId();
  }
  const GrantId grant(p.grant_prefix | p.next_grant.fetch_add(1, std::memory_order_relaxed));
  const std::vector<std::byte> args = wire::EncodeBegin(blocks, ranks);
  const auto posted = life->control().Post({.command = wire::Command::kRestoreBegin,
                                            .scalar0 = *lease_id,
                                            .scalar1 = grant.value(),
                                            .args = args,
                                            .deadline_ns = os::DeadlineAfter(p.options.load_deadline_ms * kNsPerMs)});
  if (!posted) {
    Count(p.counters.restores_not_begun);
    return GrantId();
  }
  // Nobody waits for the answer: a begin that fails shows as a plan that never comes.
  life->control().Abandon(*posted);
  Count(p.counters.restores_begun);
  return grant;
}

namespace {

Status PostRelease(Link& link, Counters& counters, wire::ReleaseKind kind, LeaseHandle lease, GrantId grant) {
  const LifePin life = link.Pin();
  if (!life) return {};  // it went with the Manager
  std::uint64_t id = grant.value();
  if (kind == wire::ReleaseKind::kLease) {
    const auto lease_id = LeaseOf(*life, lease);
    if (!lease_id) return {};
    id = *lease_id;
  }
  Count(counters.releases);
  return life->control().PostNeverLost(wire::Command::kRelease, static_cast<std::uint64_t>(kind), id);
}

}  // namespace

Status CacheClient::ReleaseLease(LeaseHandle lease) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  if (lease.is_none()) return {};
  return PostRelease(parts_->link, parts_->counters, wire::ReleaseKind::kLease, lease, {});
}

Status CacheClient::ReleaseGrant(GrantId grant) {
  ORBITKV_TRY(parts_->UsableByScheduler());
  if (grant.is_none()) return {};
  return PostRelease(parts_->link, parts_->counters, wire::ReleaseKind::kGrant, {}, grant);
}

Result<JobId> CacheClient::Restore(const RestoreRequest& request) {
  ORBITKV_ASSIGN_OR_RETURN(const EngineLayout* const layout, parts_->UsableLayout());
  return parts_->restorer.Submit(*layout, request);
}

Result<JobId> CacheClient::Publish(const PublishRequest& request) {
  ORBITKV_ASSIGN_OR_RETURN(const EngineLayout* const layout, parts_->UsableLayout());
  if (parts_->options.read_only) return Fail(Code::kInvalid, "a read-only client publishes nothing");
  return parts_->publisher.Submit(*layout, request);
}

Result<bool> CacheClient::CancelPublish(JobId job) {
  ORBITKV_TRY(parts_->Usable());
  return parts_->publisher.Cancel(job);
}

Result<bool> CacheClient::WaitSourcesFree(std::span<const JobId> jobs, std::uint64_t deadline_ns) {
  if (parts_->fork.InChild()) return std::unexpected(parts_->Usable().error());
  return parts_->publisher.WaitSourcesFree(jobs, deadline_ns);
}

Status CacheClient::RenewPages(std::span<const std::uint32_t> block_ids, std::uint64_t generation,
                               std::uint32_t group) {
  ORBITKV_ASSIGN_OR_RETURN(const EngineLayout* const layout, parts_->UsableLayout());
  if (group >= layout->group_count()) {
    return Fail(Code::kInvalid, "the layout has no such cache group", group, layout->group_count());
  }
  return parts_->pages.Renew({group, layout->group(group).pages.block_count}, block_ids, generation);
}

Result<JobState> CacheClient::StateOf(JobId job) const {
  if (parts_->fork.InChild()) return std::unexpected(parts_->Usable().error());
  return parts_->completions.StateOf(job);
}

Result<JobState> CacheClient::WaitJob(JobId job, std::uint64_t deadline_ns) {
  if (parts_->fork.InChild()) return std::unexpected(parts_->Usable().error());
  return parts_->completions.Wait(job, deadline_ns);
}

Result<std::uint32_t> CacheClient::WaitLayers(JobId job, std::uint32_t known, std::uint64_t deadline_ns) {
  if (parts_->fork.InChild()) return std::unexpected(parts_->Usable().error());
  return parts_->completions.WaitLayers(job, known, deadline_ns);
}

Result<std::vector<Completion>> CacheClient::Poll() {
  if (parts_->fork.InChild()) return std::unexpected(parts_->Usable().error());
  return parts_->completions.Take();
}

int CacheClient::completion_fd() const { return parts_->completions.fd(); }

std::vector<std::pair<const char*, std::uint64_t>> CacheClient::counters() const { return parts_->counters.Snapshot(); }

}  // namespace orbitkv::client
