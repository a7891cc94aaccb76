#include "orbitkv/manager/manager.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "orbitkv/base/log.h"
#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/channel/socket_lock.h"
#include "orbitkv/channel/waiter.h"
#include "orbitkv/manager/core.h"
#include "orbitkv/manager/dispatcher.h"
#include "orbitkv/manager/liveness_watch.h"
#include "orbitkv/manager/metrics.h"
#include "orbitkv/manager/pool_memory.h"
#include "orbitkv/manager/pool_storage.h"
#include "orbitkv/manager/session_rows.h"
#include "orbitkv/manager/ssd_backing.h"
#include "orbitkv/manager/verifier.h"
#include "orbitkv/manager/version.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/random.h"
#include "orbitkv/os/service_manager.h"

namespace orbitkv::manager {
namespace {

constexpr const char* kTag = "manager";
// Places beside the engines' sessions for whoever asks for health.
constexpr std::size_t kAdminSessions = 8;

std::unexpected<StartError> Explain(std::string what, const Error& error) {
  return std::unexpected(StartError{fmt::format("{}: {}", what, ToString(error)), error.code == Code::kInvalid});
}

StartError ExplainBootstrap(const Config& config, const Error& error) {
  if (error.code == Code::kRefused && error.a != 0) {
    return {fmt::format("another Manager (pid {}) serves {}; stop it or give another --socket", error.a, config.socket),
            false};
  }
  if (error.code == Code::kTimedOut) {
    return {fmt::format("{}.lock is held by a process that does not answer; end it or give another --socket",
                        config.socket),
            false};
  }
  return {fmt::format("cannot serve {}: {}; make its directory writable for this user or give another --socket",
                      config.socket, ToString(error)),
          true};
}

}  // namespace

// Members in the order of construction; Stop goes the other way.
struct Manager::Parts {
  Config config;
  Incarnation incarnation;
  Keeper keeper;
  std::optional<os::FileLock> socket_lock;  // until the server has it
  std::optional<PoolStorage> storage;
  std::unique_ptr<SessionRows> rows;  // null when nothing outlives this process
  std::unique_ptr<Core> core;
  std::uint64_t waited_ns = 0;     // for locks of an earlier Manager
  std::uint64_t began_ns = 0;      // when they were free
  std::uint64_t recovered_ns = 0;  // from then until blocks can be served
  Metrics metrics;
  std::unique_ptr<channel::DispatcherWaiter> waiter;
  std::unique_ptr<Dispatcher> dispatcher;
  std::unique_ptr<Verifier> verifier;
  std::unique_ptr<channel::BootstrapServer> server;
  std::unique_ptr<PoolReserver> reserver;
  std::unique_ptr<LivenessWatch> watch;
  std::unique_ptr<Backing> backing;  // or null

  std::expected<void, StartError> OpenStorage();
  std::expected<void, StartError> MakeCore();
  std::expected<void, StartError> Serve();
  std::expected<void, StartError> Run();
  void SayRecovered() const;
  void Stop();
};

// Locks before memory: what an earlier Manager of this socket or this directory left is looked at when it is gone.
std::expected<void, StartError> Manager::Parts::OpenStorage() {
  const std::uint64_t lock_wait_ns = std::uint64_t{config.lock_wait_ms} * 1'000'000;
  const std::uint64_t asked_ns = os::MonotonicNs();
  auto locked = channel::LockSocket(config.socket, lock_wait_ns);
  if (!locked) return std::unexpected(ExplainBootstrap(config, locked.error()));
  socket_lock = std::move(*locked);
  waited_ns = os::MonotonicNs() - asked_ns;
  PoolStorage::Options options;
  options.pool_bytes = config.pool_bytes;
  options.huge_pages = config.huge_pages;
  options.directory = config.pool_path;
  options.passed = std::move(keeper.passed);
  options.notify_socket = keeper.notify_socket;
  options.lock_wait_ns = lock_wait_ns;
  options.shape = Core::Shape(config);
  auto opened = PoolStorage::Open(std::move(options));
  if (!opened) return std::unexpected(StartError{opened.error().text, opened.error().bad_configuration});
  storage.emplace(std::move(*opened));
  waited_ns += storage->waited_ns();
  began_ns = asked_ns + waited_ns;
  if (storage->outlives()) {
    rows = std::make_unique<SessionRows>(storage->liveness_fd(), Core::Shape(config).session_rows);
  }
  return {};
}

std::expected<void, StartError> Manager::Parts::MakeCore() {
  std::array<std::uint64_t, 3> random{};
  if (const Status got = os::RandomBytes(std::as_writable_bytes(std::span(random))); !got) {
    return Explain("no random numbers", got.error());
  }
  incarnation = {random[0], random[1]};
  if (auto opened = OpenStorage(); !opened) return opened;
  const StartError no_memory{"the tables find no memory; give smaller --max-slots and --max-blocks, or raise the limit",
                             true};
  CoreMemory memory{.tables = storage->tables(),
                    .reserved_bytes = storage->reserved_bytes(),
                    .alive = {},
                    .now_ns = os::MonotonicNs()};
  if (rows) {
    memory.alive = [this](std::uint32_t row, const pool::SessionOwner& owner) {
      if (owner.watched && !rows->Locked(row)) return false;
      rows->Keep(row);
      return true;
    };
  }
  try {
    auto built = Core::Create(config, random[2], memory);
    if (!built && built.error().code == Code::kExhausted) return std::unexpected(no_memory);
    if (!built) return Explain("cannot size the tables", built.error());
    core = std::move(*built);
  } catch (const std::bad_alloc&) {
    return std::unexpected(no_memory);
  }
  core->AddFigures(metrics);
  metrics.AddSource([this](MetricSink& sink) {
    sink.Gauge("orbitkv_build_info", "1, with the version as a label.", 1, {{"version", kVersion}});
    sink.Gauge("orbitkv_pool_huge_pages", "1 when the pool uses 2 MiB pages.", storage->pool().huge() ? 1 : 0);
    sink.Gauge("orbitkv_pool_outlives_manager", "1 when a later Manager finds the pool again.",
               storage->outlives() ? 1 : 0);
    sink.Gauge("orbitkv_recovery_seconds", "From the free lock of the Manager before to the start of service.",
               static_cast<double>(recovered_ns) / 1e9);
    sink.Gauge("orbitkv_recovery_wait_seconds", "Before that, for the lock.", static_cast<double>(waited_ns) / 1e9);
  });
  return {};
}

std::expected<void, StartError> Manager::Parts::Serve() {
  auto made = channel::DispatcherWaiter::Create({incarnation, std::uint64_t{config.spin_us} * 1000});
  if (!made) return Explain("cannot make the Manager page", made.error());
  waiter = std::move(*made);
  dispatcher = std::make_unique<Dispatcher>(
      Dispatcher::Parts{core.get(), waiter.get(), &metrics, incarnation, [this](std::uint32_t row) {
                          if (watch) watch->Forget(row);
                          if (rows) rows->Give(row);
                        }});
  verifier = std::make_unique<Verifier>(storage->pool().view(),
                                        [this](std::uint64_t id, bool equal) { dispatcher->PostVerdict(id, equal); });
  channel::BootstrapOptions options;
  options.socket_path = config.socket;
  options.incarnation = incarnation;
  options.max_sessions = config.max_sessions;
  options.max_admin_sessions = kAdminSessions;
  options.manager_page_fd = waiter->page_fd();
  options.pool_fds = {storage->pool().fd()};
  options.pool_bytes = storage->pool().bytes();
  options.pool_named = storage->named();
  options.seats = rows.get();
  options.lock_wait_ns = std::uint64_t{config.lock_wait_ms} * 1'000'000;
  auto started = channel::BootstrapServer::Start(options, dispatcher.get(), std::move(socket_lock));
  if (!started) return std::unexpected(ExplainBootstrap(config, started.error()));
  server = std::move(*started);
  dispatcher->Attach(server.get(), verifier.get(), backing.get());
  metrics.AddSource([this](MetricSink& sink) {
    const channel::BootstrapStats stats = server->stats();
    sink.Counter("orbitkv_accepts_total", "Connections taken.", static_cast<double>(stats.accepted));
    sink.Counter("orbitkv_accepts_delayed_total", "Times that the next connection had to wait for its turn.",
                 static_cast<double>(stats.delayed_accepts));
    sink.Counter("orbitkv_frames_total", "Lifecycle frames.", static_cast<double>(stats.frames));
    sink.Counter("orbitkv_frames_delayed_total", "Of those, that had to wait for their turn.",
                 static_cast<double>(stats.delayed_frames));
  });
  return {};
}

std::expected<void, StartError> Manager::Parts::Run() {
  reserver =
      std::make_unique<PoolReserver>(PoolReserver::ForMachine(storage->pool(), storage->reserved_bytes(), config));
  const auto first = reserver->ReserveFirst(os::DeadlineAfter(std::uint64_t{config.lock_wait_ms} * 1'000'000));
  if (!first) {
    return std::unexpected(
        StartError{fmt::format("no memory for the pool's first {} bytes: {}",
                               std::min<std::uint64_t>(config.pool_bytes, 64U << 20U), ToString(first.error())),
                   false});
  }
  if (const Status added = core->AddReserved(*first); !added) return Explain("the pool", added.error());
  if (backing) {
    if (auto opened = backing->Open(os::DeadlineAfter(std::uint64_t{config.lock_wait_ms} * 1'000'000)); !opened) {
      return std::unexpected(StartError{std::move(opened.error()), true});
    }
    backing->AddFigures(metrics);
    const Backing::Reports reports{
        .loaded = [this](std::uint64_t id, service::LoadResult result,
                         std::uint64_t checksum) { dispatcher->PostLoaded(id, result, checksum); },
        .saved = [this](std::uint64_t id, service::SaveResult result) { dispatcher->PostSaved(id, result); }};
    const Status moves = backing->Start(storage->pool().fd(), storage->pool().bytes(), reports);
    if (!moves) return Explain("cannot start what lies behind the pool", moves.error());
  }
  std::set<std::uint32_t> watched;
  for (const service::EarlierSessionStatus& session : core->service().earlier_sessions()) {
    if (session.watched) watched.insert(session.row);
    log::Warning(kTag, "a process of an earlier session may still touch {} slots ({} bytes) pid={} row={}",
                 session.slots, session.bytes, session.pid, session.row);
  }
  watch = std::make_unique<LivenessWatch>(
      LivenessWatch::Options{.rows = std::move(watched),
                             .locked = [this](std::uint32_t row) { return rows->Locked(row); },
                             .gone = [this](std::uint32_t row) { dispatcher->PostEarlierGone(row); }});
  for (const Status& started : {watch->Start(), verifier->Start(), dispatcher->Start(),
                                reserver->Start([this](std::uint64_t bytes) { dispatcher->PostReserved(bytes); })}) {
    if (!started) return Explain("cannot start a thread", started.error());
  }
  return {};
}

void Manager::Parts::SayRecovered() const {
  if (!storage->taken_over()) return;
  const service::RecoveryReport& found = core->recovery();
  log::Info(kTag,
            "recovered life={} components={} bytes={} namespaces={} in_ms={} after_waiting_ms={} reserved_bytes={} "
            "freed: unfinished={} damaged={} misplaced={} unknown={}; earlier sessions: ended={} alive={} "
            "held_slots={}",
            found.life, found.adopted, found.adopted_bytes, found.namespaces, recovered_ns / 1'000'000,
            waited_ns / 1'000'000, storage->reserved_bytes(), found.unfinished, found.damaged, found.misplaced,
            found.discarded, found.sessions_ended, found.sessions_alive, found.held_slots);
}

void Manager::Parts::Stop() {
  if (reserver) reserver->Stop();
  if (watch) watch->Stop();
  // Clients get their last answers before their connections end.
  if (dispatcher) dispatcher->Stop();
  if (server) server->Stop();
  if (verifier) verifier->Stop();
  if (backing) backing->Stop();
}

std::expected<std::unique_ptr<Manager>, StartError> Manager::Start(const Config& config,
                                                                   std::unique_ptr<Backing> backing, Keeper keeper) {
  if (std::string problem = PoolTooLarge(config.pool_bytes); !problem.empty()) {
    return std::unexpected(StartError{std::move(problem), true});
  }
  if (std::string problem = TablesTooLarge(Core::TableBytes(config)); !problem.empty()) {
    return std::unexpected(StartError{std::move(problem), true});
  }
  auto parts = std::make_unique<Parts>();
  parts->config = config;
  if (!backing && !config.ssd_paths.empty()) {
    backing = std::make_unique<SsdBacking>(SsdBacking::Options{.paths = config.ssd_paths, .bytes = config.ssd_bytes});
  }
  parts->backing = std::move(backing);
  parts->keeper = std::move(keeper);
  std::expected<void, StartError> done = parts->MakeCore();
  if (done) done = parts->Serve();
  if (done) done = parts->Run();
  if (!done) {
    parts->Stop();
    return std::unexpected(done.error());
  }
  log::Info(kTag, "started version={} pid={} socket={} pool_bytes={} huge_pages={}", kVersion, os::OwnPid(),
            config.socket, parts->storage->pool().bytes(), parts->storage->pool().huge());
  parts->recovered_ns = os::MonotonicNs() - parts->began_ns;
  parts->SayRecovered();
  if (!parts->keeper.notify_socket.empty()) {
    static_cast<void>(os::NotifyServiceManager(parts->keeper.notify_socket, "READY=1"));
  }
  return std::unique_ptr<Manager>(new Manager(std::move(parts)));
}

Manager::Manager(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Manager::~Manager() { Stop(); }

void Manager::Stop() { parts_->Stop(); }

Incarnation Manager::incarnation() const { return parts_->incarnation; }

std::uint64_t Manager::pool_bytes() const { return parts_->storage->pool().bytes(); }

std::string Manager::ReadyLine() const {
  return fmt::format("orbitkv-manager ready socket={} pool_bytes={} pid={}", parts_->config.socket, pool_bytes(),
                     os::OwnPid());
}

}  // namespace orbitkv::manager
