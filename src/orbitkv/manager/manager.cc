#include "orbitkv/manager/manager.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <new>
#include <span>
#include <utility>

#include "orbitkv/base/log.h"
#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/channel/waiter.h"
#include "orbitkv/manager/core.h"
#include "orbitkv/manager/dispatcher.h"
#include "orbitkv/manager/metrics.h"
#include "orbitkv/manager/pool_memory.h"
#include "orbitkv/manager/ssd_backing.h"
#include "orbitkv/manager/verifier.h"
#include "orbitkv/manager/version.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/random.h"

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
  std::unique_ptr<PoolMemory> memory;
  std::unique_ptr<Core> core;
  Metrics metrics;
  std::unique_ptr<channel::DispatcherWaiter> waiter;
  std::unique_ptr<Dispatcher> dispatcher;
  std::unique_ptr<Verifier> verifier;
  std::unique_ptr<channel::BootstrapServer> server;
  std::unique_ptr<PoolReserver> reserver;
  std::unique_ptr<Backing> backing;  // or null
  SsdBacking* ssd = nullptr;         // the backing, where it is one

  std::expected<void, StartError> MakeCore();
  std::expected<void, StartError> Serve();
  std::expected<void, StartError> Run();
  void Stop();
};

std::expected<void, StartError> Manager::Parts::MakeCore() {
  std::array<std::uint64_t, 3> random{};
  if (const Status got = os::RandomBytes(std::as_writable_bytes(std::span(random))); !got) {
    return Explain("no random numbers", got.error());
  }
  incarnation = {random[0], random[1]};
  auto made = PoolMemory::Create(config.pool_bytes, config.huge_pages);
  if (!made) return Explain("cannot make the pool", made.error());
  memory = std::make_unique<PoolMemory>(std::move(*made));
  const StartError no_memory{"the tables find no memory; give smaller --max-slots and --max-blocks, or raise the limit",
                             true};
  try {
    auto built = Core::Create(config, random[2]);
    if (!built && built.error().code != Code::kInvalid) return std::unexpected(no_memory);
    if (!built) return Explain("cannot size the tables", built.error());
    core = std::move(*built);
  } catch (const std::bad_alloc&) {
    return std::unexpected(no_memory);
  }
  core->AddFigures(metrics);
  metrics.AddSource([this](MetricSink& sink) {
    sink.Gauge("orbitkv_build_info", "1, with the version as a label.", 1, {{"version", kVersion}});
    sink.Gauge("orbitkv_pool_huge_pages", "1 when the pool uses 2 MiB pages.", memory->huge() ? 1 : 0);
  });
  return {};
}

std::expected<void, StartError> Manager::Parts::Serve() {
  auto made = channel::DispatcherWaiter::Create({incarnation, std::uint64_t{config.spin_us} * 1000});
  if (!made) return Explain("cannot make the Manager page", made.error());
  waiter = std::move(*made);
  dispatcher = std::make_unique<Dispatcher>(Dispatcher::Parts{core.get(), waiter.get(), &metrics, incarnation});
  verifier = std::make_unique<Verifier>(memory->view(),
                                        [this](std::uint64_t id, bool equal) { dispatcher->PostVerdict(id, equal); });
  channel::BootstrapOptions options;
  options.socket_path = config.socket;
  options.incarnation = incarnation;
  options.max_sessions = config.max_sessions;
  options.max_admin_sessions = kAdminSessions;
  options.manager_page_fd = waiter->page_fd();
  options.pool_fds = {memory->fd()};
  options.pool_bytes = memory->bytes();
  options.lock_wait_ns = std::uint64_t{config.lock_wait_ms} * 1'000'000;
  auto started = channel::BootstrapServer::Start(options, dispatcher.get());
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
  reserver = std::make_unique<PoolReserver>(PoolReserver::ForMachine(*memory, config));
  const auto first = reserver->ReserveFirst(os::DeadlineAfter(std::uint64_t{config.lock_wait_ms} * 1'000'000));
  if (!first) {
    return std::unexpected(
        StartError{fmt::format("no memory for the pool's first {} bytes: {}",
                               std::min<std::uint64_t>(config.pool_bytes, 64U << 20U), ToString(first.error())),
                   false});
  }
  if (const Status added = core->pool().AddReserved(*first); !added) return Explain("the pool", added.error());
  if (ssd != nullptr) {
    if (auto opened = ssd->Open(os::DeadlineAfter(std::uint64_t{config.lock_wait_ms} * 1'000'000)); !opened) {
      return std::unexpected(StartError{std::move(opened.error()), true});
    }
    ssd->AddFigures(metrics);
  }
  if (backing) {
    const Backing::Reports reports{
        .loaded = [this](std::uint64_t id, service::LoadResult result,
                         std::uint64_t checksum) { dispatcher->PostLoaded(id, result, checksum); },
        .saved = [this](std::uint64_t id, service::SaveResult result) { dispatcher->PostSaved(id, result); }};
    const Status moves = backing->Start(memory->fd(), memory->bytes(), reports);
    if (!moves) return Explain("cannot start what lies behind the pool", moves.error());
  }
  for (const Status& started : {verifier->Start(), dispatcher->Start(),
                                reserver->Start([this](std::uint64_t bytes) { dispatcher->PostReserved(bytes); })}) {
    if (!started) return Explain("cannot start a thread", started.error());
  }
  return {};
}

void Manager::Parts::Stop() {
  if (reserver) reserver->Stop();
  // Clients get their last answers before their connections end.
  if (dispatcher) dispatcher->Stop();
  if (server) server->Stop();
  if (verifier) verifier->Stop();
  if (backing) backing->Stop();
}

std::expected<std::unique_ptr<Manager>, StartError> Manager::Start(const Config& config,
                                                                   std::unique_ptr<Backing> backing) {
  if (std::string problem = PoolTooLarge(config.pool_bytes); !problem.empty()) {
    return std::unexpected(StartError{std::move(problem), true});
  }
  if (std::string problem = TablesTooLarge(Core::TableBytes(config)); !problem.empty()) {
    return std::unexpected(StartError{std::move(problem), true});
  }
  auto parts = std::make_unique<Parts>();
  parts->config = config;
  if (!backing && !config.ssd_paths.empty()) {
    auto ssd = std::make_unique<SsdBacking>(SsdBacking::Options{config.ssd_paths, config.ssd_bytes});
    parts->ssd = ssd.get();
    backing = std::move(ssd);
  }
  parts->backing = std::move(backing);
  std::expected<void, StartError> done = parts->MakeCore();
  if (done) done = parts->Serve();
  if (done) done = parts->Run();
  if (!done) {
    parts->Stop();
    return std::unexpected(done.error());
  }
  log::Info(kTag, "started version={} pid={} socket={} pool_bytes={} huge_pages={}", kVersion, os::OwnPid(),
            config.socket, parts->memory->bytes(), parts->memory->huge());
  return std::unique_ptr<Manager>(new Manager(std::move(parts)));
}

Manager::Manager(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Manager::~Manager() { Stop(); }

void Manager::Stop() { parts_->Stop(); }

Incarnation Manager::incarnation() const { return parts_->incarnation; }

std::uint64_t Manager::pool_bytes() const { return parts_->memory->bytes(); }

std::string Manager::ReadyLine() const {
  return fmt::format("orbitkv-manager ready socket={} pool_bytes={} pid={}", parts_->config.socket, pool_bytes(),
                     os::OwnPid());
}

}  // namespace orbitkv::manager
