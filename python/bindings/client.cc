#include <array>
#include <memory>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <numeric>
#include <tuple>
#include <utility>

#include "bindings.h"
#include "hashes.h"

#include "orbitkv/client/cache_client.h"
#include "orbitkv/client/registration.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::python {
namespace {

using client::CacheClient;

std::uint64_t Deadline(double seconds, const char* name) {
  if (!(seconds >= 0 && seconds <= 86'400)) throw InvalidArgument(std::string(name) + " must be 0 to 86400 seconds");
  return os::DeadlineAfter(static_cast<std::uint64_t>(seconds * 1e9));
}

state::Digest DigestAttribute(nb::handle options, const char* name, bool may_be_empty) {
  const nb::object value = options.attr(name);
  state::Digest digest{};
  if (!nb::isinstance<nb::bytes>(value)) throw InvalidArgument(std::string(name) + " must be bytes");
  const auto bytes = nb::borrow<nb::bytes>(value);
  if (bytes.size() == 0 && may_be_empty) return digest;
  if (bytes.size() != digest.size()) {
    throw InvalidArgument(std::string(name) + " must be 32 bytes, not " + std::to_string(bytes.size()));
  }
  std::memcpy(digest.data(), bytes.c_str(), digest.size());
  return digest;
}

client::Role RoleOf(const std::string& role) {
  if (role == "scheduler") return client::Role::kScheduler;
  if (role == "worker") return client::Role::kWorker;
  if (role == "both") return client::Role::kBoth;
  throw InvalidArgument("role must be scheduler, worker or both, not " + role);
}

copy::Stores StoresOf(const std::string& stores) {
  if (stores == "auto") return client::ClientOptions().restore_stores;
  if (stores == "ordinary") return copy::Stores::kOrdinary;
  if (stores == "nontemporal") return copy::Stores::kNonTemporal;
  throw InvalidArgument("stores must be auto, ordinary or nontemporal, not " + stores);
}

std::string StateName(client::JobState state) {
  switch (state) {
    case client::JobState::kPending: return "pending";
    case client::JobState::kEnqueued: return "enqueued";
    case client::JobState::kDrainedOk: return "drained-ok";
    case client::JobState::kDrainedFailed: break;
  }
  return "drained-failed";
}

// None: unchecked; a number: of all pages; else one number for each block.
std::vector<std::uint64_t> GenerationsOf(nb::handle generations) {
  std::vector<std::uint64_t> numbers;
  if (generations.is_none()) return numbers;
  std::uint64_t one = 0;
  if (nb::try_cast(generations, one)) return {one};
  if (!nb::try_cast(generations, numbers)) {
    throw InvalidArgument("generations must be an int from 0, a sequence of them, or None");
  }
  return numbers;
}

std::uint64_t Nanoseconds(double seconds, const char* name) {
  if (!(seconds >= 0 && seconds <= 60)) throw InvalidArgument(std::string(name) + " must be 0 to 60");
  return static_cast<std::uint64_t>(seconds * 1e9);
}

client::QueryMode ModeOf(const std::string& mode) {
  if (mode == "longest") return client::QueryMode::kLeasedRead;
  if (mode == "all") return client::QueryMode::kFullPrefix;
  if (mode == "discovery") return client::QueryMode::kDiscovery;
  if (mode == "selected") return client::QueryMode::kSelected;
  throw InvalidArgument("mode must be longest, all, discovery or selected, not " + mode);
}

// (group, first, count) of each run of blocks.
template <typename Run>
std::vector<Run> RunsOf(nb::handle source, const char* name) {
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> runs;
  if (!nb::try_cast(source, runs)) {
    throw InvalidArgument(std::string(name) + " must be (group, first, count) tuples of ints from 0");
  }
  std::vector<Run> result;
  for (const auto& [group, first, count] : runs) result.push_back({group, first, count});
  return result;
}

// The pages of one cache group, and what keeps them alive.
client::Layout LayoutOf(nb::handle layers, std::vector<nb::object>& keepalive) {
  client::Layout layout;
  std::size_t index = 0;
  for (const nb::handle layer : layers) {
    const auto address = Attribute<std::uint64_t>(layer, "address", "an int from 0");
    const auto stride = Attribute<std::uint64_t>(layer, "block_stride_bytes", "an int from 0");
    const auto page_bytes = Attribute<std::uint64_t>(layer, "page_bytes", "an int from 0");
    const auto blocks = Attribute<std::uint32_t>(layer, "block_count", "an int from 0");
    if (index == 0) {
      layout.pages.page_bytes = page_bytes;
      layout.pages.block_count = blocks;
    }
    if (page_bytes != layout.pages.page_bytes || blocks != layout.pages.block_count) {
      throw InvalidArgument("layer " + std::to_string(index) + " has other page_bytes or block_count than layer 0");
    }
    layout.pages.layers.push_back({reinterpret_cast<std::byte*>(address), stride});
    keepalive.push_back(nb::borrow(layer));
    ++index;
  }
  return layout;
}

client::ClientOptions OptionsOf(nb::handle source) {
  const auto number = [&](const char* name) { return Attribute<std::uint32_t>(source, name, "an int from 0"); };
  const auto text = [&](const char* name) { return Attribute<std::string>(source, name, "str"); };
  client::ClientOptions options;
  options.socket_path = text("socket");
  options.instance = text("instance");
  options.role = RoleOf(text("role"));
  options.rank = number("rank");
  options.world_size = number("world_size");
  options.shard = number("shard");
  options.shard_count = number("shard_count");
  options.computation_digest = DigestAttribute(source, "computation_digest", false);
  options.representation_digest = DigestAttribute(source, "representation_digest", true);
  options.name = text("name");
  options.copy_threads = number("copy_threads");
  options.query_deadline_ms = number("query_deadline_ms");
  options.restore_stores = StoresOf(text("stores"));
  options.read_only = Attribute<bool>(source, "read_only", "bool");
  const auto hash_block_tokens = number("hash_block_tokens");
  for (const nb::handle group : source.attr("groups")) {
    const state::GroupRule rule = RuleOf(group);
    options.expected_groups.push_back({.block_tokens = rule.block_tokens,
                                       .page_count = 0,
                                       .page_bytes = 0,
                                       .kind = rule.kind,
                                       .span_tokens = rule.span_tokens,
                                       .hash_block_tokens = hash_block_tokens});
  }
  return options;
}

// The client and what keeps its pages alive.
class PyClient {
 public:
  explicit PyClient(nb::handle options) {
    client_ = ValueOrThrow(CacheClient::Create(OptionsOf(options)));
    OrThrow(client_->Start());
  }
  ~PyClient() {
    const nb::gil_scoped_release release;
    client_.reset();
  }
  PyClient(const PyClient&) = delete;
  PyClient& operator=(const PyClient&) = delete;

  CacheClient& operator*() const { return *client_; }
  CacheClient* operator->() const { return client_.get(); }

  std::string State() const { return std::string(client::StateName(client_->state())); }
  nb::bytes IncarnationOf() const {
    const auto incarnation = client_->incarnation();
    const std::string bytes = incarnation ? client::IncarnationBytes(*incarnation) : std::string();
    return nb::bytes(bytes.data(), bytes.size());
  }
  bool WaitUp(double timeout_s) const {
    const std::uint64_t deadline = Deadline(timeout_s, "timeout_s");
    const nb::gil_scoped_release release;
    return Checked(client_->WaitUp(deadline));
  }
  void RegisterLayout(nb::handle layers, std::uint32_t block_tokens);
  void RegisterGroups(nb::handle groups, std::uint32_t hash_block_tokens);

  nb::object Query(const std::string& request_id, const BlockHashes& hashes, std::uint32_t prefix_blocks,
                   std::uint32_t attempt, double wait_s, double load_wait_s, bool load_wait_is_compute_time,
                   const std::string& mode, nb::handle views) const;
  void WarmUp(const std::string& request_id, const BlockHashes& hashes, std::uint32_t prefix_blocks) const;
  std::uint64_t Prepare(const std::string& request_id, const BlockHashes& hashes, const std::string& consumer,
                        std::uint32_t prefix_blocks, double load_wait_s) const;
  nb::object Claim(const std::string& consumer, std::uint32_t most_blocks, std::uint64_t ticket, double wait_s) const;
  void CancelPrepared(std::uint64_t ticket) const { Checked(client_->CancelPrepared(client::TicketHandle(ticket))); }
  void CancelQuery(const std::string& request_id) const {
    const nb::gil_scoped_release release;
    Checked(client_->CancelQuery(request_id));
  }
  std::uint64_t BeginRestore(std::uint64_t lease, std::uint32_t blocks, nb::handle ranks) const {
    const std::vector<std::uint32_t> numbers = Numbers(ranks, "ranks");
    return Checked(client_->BeginRestore(client::LeaseHandle(lease), blocks, numbers)).value();
  }
  void ReleaseLease(std::uint64_t lease) const { Checked(client_->ReleaseLease(client::LeaseHandle(lease))); }
  void ReleaseGrant(std::uint64_t grant) const { Checked(client_->ReleaseGrant(GrantId(grant))); }

  std::uint64_t Restore(std::uint64_t grant, const BlockHashes& hashes, nb::handle block_ids,
                        std::uint32_t prefix_blocks, const nb::bytes& incarnation, std::uint64_t tag,
                        nb::handle generations) const;
  nb::object Publish(const BlockHashes& hashes, nb::handle block_ids, nb::handle runs, std::uint32_t first_depth,
                     const nb::bytes& parent, std::uint32_t prompt_tokens, std::uint32_t answer_tokens,
                     std::uint64_t tag, nb::handle generations) const;
  void RenewPages(nb::handle block_ids, std::uint64_t generation, std::uint32_t group) const {
    Checked(client_->RenewPages(Numbers(block_ids, "block_ids"), generation, group));
  }
  std::string JobState(std::uint64_t job) const { return StateName(Checked(client_->StateOf(client::JobId(job)))); }
  std::string WaitJob(std::uint64_t job, double timeout_s) const {
    const std::uint64_t deadline = Deadline(timeout_s, "timeout_s");
    auto state = [&] {
      const nb::gil_scoped_release release;
      return client_->WaitJob(client::JobId(job), deadline);
    }();
    return StateName(Checked(state));
  }
  std::uint32_t WaitLayers(std::uint64_t job, std::uint32_t known, double timeout_s) const {
    const std::uint64_t deadline = Deadline(timeout_s, "timeout_s");
    auto layers = [&] {
      const nb::gil_scoped_release release;
      return client_->WaitLayers(client::JobId(job), known, deadline);
    }();
    return Checked(layers);
  }
  bool CancelPublish(std::uint64_t job) const { return Checked(client_->CancelPublish(client::JobId(job))); }
  bool WaitSourcesFree(const std::vector<std::uint64_t>& jobs, double timeout_s) const;

  std::vector<client::Completion> Poll() const { return Checked(client_->Poll()); }
  nb::dict Counters() const {
    nb::dict counters;
    for (const auto& [name, value] : client_->counters()) counters[name] = value;
    return counters;
  }
  void Close(double timeout_s) const {
    const std::uint64_t deadline = Deadline(timeout_s, "timeout_s");
    Status stopped;
    {
      const nb::gil_scoped_release release;
      stopped = client_->Stop(deadline);
    }
    Checked(stopped);
  }

 private:
  template <typename T>
  T Checked(Result<T> result) const {
    if (!result) Refuse(result.error());
    return std::move(*result);
  }
  void Checked(const Status& status) const {
    if (!status) Refuse(status.error());
  }
  [[noreturn]] void Refuse(const Error& error) const {
    if (client_->forked()) throw ForkedError(Message(error));
    Throw(error);
  }

  void Register(client::GroupLayouts layouts, const std::vector<nb::object>& keepalive);

  std::unique_ptr<CacheClient> client_;
  std::vector<nb::object> keepalive_;
};

void PyClient::RegisterLayout(nb::handle layers, std::uint32_t block_tokens) {
  std::vector<nb::object> keepalive;
  client::GroupLayouts layouts;
  layouts.groups.push_back(LayoutOf(layers, keepalive));
  layouts.groups.front().block_tokens = block_tokens;
  Register(std::move(layouts), keepalive);
}

void PyClient::RegisterGroups(nb::handle groups, std::uint32_t hash_block_tokens) {
  std::vector<nb::object> keepalive;
  client::GroupLayouts layouts;
  layouts.hash_block_tokens = hash_block_tokens;
  for (const nb::handle group : groups) {
    const state::GroupRule rule = RuleOf(group);
    client::Layout& layout = layouts.groups.emplace_back(LayoutOf(group.attr("layers"), keepalive));
    layout.block_tokens = rule.block_tokens;
    layout.kind = rule.kind;
    layout.span_tokens = rule.span_tokens;
  }
  Register(std::move(layouts), keepalive);
}

void PyClient::Register(client::GroupLayouts layouts, const std::vector<nb::object>& keepalive) {
  const Status status = client_->RegisterGroups(std::move(layouts));
  if (!status && status.error().code == Code::kRefused && !client_->forked()) {
    throw LayoutError(Message(status.error()));
  }
  Checked(status);
  keepalive_.insert(keepalive_.end(), keepalive.begin(), keepalive.end());
}

std::vector<std::string> TiersOf(const client::Answer& answer) {
  std::vector<std::string> tiers;
  for (const wire::Tier tier : answer.tiers) {
    tiers.emplace_back(tier == wire::Tier::kPool ? "pool" : tier == wire::Tier::kBehind ? "behind" : "absent");
  }
  return tiers;
}

nb::object PyClient::Query(const std::string& request_id, const BlockHashes& hashes, std::uint32_t prefix_blocks,
                           std::uint32_t attempt, double wait_s, double load_wait_s, bool load_wait_is_compute_time,
                           const std::string& mode, nb::handle views) const {
  const std::uint64_t wait_ns = Nanoseconds(wait_s, "wait_s");
  const auto hold = hashes.hold();
  const auto selected = RunsOf<client::HashView>(views, "views");
  const client::Query query{request_id,    hashes.span(),
                            prefix_blocks, attempt,
                            ModeOf(mode),  Nanoseconds(load_wait_s, "load_wait_s"),
                            selected,      load_wait_is_compute_time};
  auto answer = [&] {
    const nb::gil_scoped_release release;
    return client_->Ask(query, wait_ns);
  }();
  const std::optional<client::Answer> value = Checked(std::move(answer));
  return value ? nb::cast(*value) : nb::none();
}

void PyClient::WarmUp(const std::string& request_id, const BlockHashes& hashes, std::uint32_t prefix_blocks) const {
  Checked(client_->WarmUp({.request_id = request_id, .hashes = hashes.span(), .prefix_blocks = prefix_blocks}));
}

std::uint64_t PyClient::Prepare(const std::string& request_id, const BlockHashes& hashes, const std::string& consumer,
                                std::uint32_t prefix_blocks, double load_wait_s) const {
  const client::Query query{.request_id = request_id,
                            .hashes = hashes.span(),
                            .prefix_blocks = prefix_blocks,
                            .load_wait_ns = Nanoseconds(load_wait_s, "load_wait_s")};
  return Checked(client_->Prepare(query, consumer)).value();
}

nb::object PyClient::Claim(const std::string& consumer, std::uint32_t most_blocks, std::uint64_t ticket,
                           double wait_s) const {
  const std::uint64_t wait_ns = Nanoseconds(wait_s, "wait_s");
  auto answer = [&] {
    const nb::gil_scoped_release release;
    return client_->Claim({consumer, client::TicketHandle(ticket), most_blocks}, wait_ns);
  }();
  const std::optional<client::Answer> value = Checked(std::move(answer));
  return value ? nb::cast(*value) : nb::none();
}

std::uint64_t PyClient::Restore(std::uint64_t grant, const BlockHashes& hashes, nb::handle block_ids,
                                std::uint32_t prefix_blocks, const nb::bytes& incarnation, std::uint64_t tag,
                                nb::handle generations) const {
  const std::vector<std::uint32_t> ids = Numbers(block_ids, "block_ids");
  const std::vector<std::uint64_t> page_generations = GenerationsOf(generations);
  client::RestoreRequest request{GrantId(grant),   hashes.span(), ids, std::nullopt, tag,
                                 page_generations, prefix_blocks};
  if (incarnation.size() > 0) {
    request.incarnation = client::IncarnationFrom({incarnation.c_str(), incarnation.size()});
    if (!request.incarnation) throw InvalidArgument("incarnation must be 16 bytes, or none");
  }
  const auto hold = hashes.hold();
  auto job = [&] {
    const nb::gil_scoped_release release;
    return client_->Restore(request);
  }();
  return Checked(std::move(job)).value();
}

nb::object PyClient::Publish(const BlockHashes& hashes, nb::handle block_ids, nb::handle runs,
                             std::uint32_t first_depth, const nb::bytes& parent, std::uint32_t prompt_tokens,
                             std::uint32_t answer_tokens, std::uint64_t tag, nb::handle generations) const {
  const std::vector<std::uint32_t> ids = Numbers(block_ids, "block_ids");
  const std::vector<std::uint64_t> page_generations = GenerationsOf(generations);
  if (parent.size() > state::kDigestBytes) throw InvalidArgument("parent must be at most 32 bytes");
  if (first_depth > 0 && parent.size() == 0) {
    throw InvalidArgument("first_depth is not 0, so parent must be the hash of the block before the first one");
  }
  const auto chosen = RunsOf<state::GroupDemand>(runs, "runs");
  client::PublishRequest request{hashes.span(), ids, first_depth,      {},    prompt_tokens,
                                 answer_tokens, tag, page_generations, chosen};
  request.parent = state::BlockHash::From(std::as_bytes(std::span(parent.c_str(), parent.size())));
  auto job = client_->Publish(request);
  if (!job && job.error().code == Code::kBusy) return nb::none();
  return nb::int_(Checked(std::move(job)).value());
}

bool PyClient::WaitSourcesFree(const std::vector<std::uint64_t>& jobs, double timeout_s) const {
  std::vector<client::JobId> ids;
  ids.reserve(jobs.size());
  for (const std::uint64_t job : jobs) ids.emplace_back(job);
  const std::uint64_t deadline = Deadline(timeout_s, "timeout_s");
  const nb::gil_scoped_release release;
  return Checked(client_->WaitSourcesFree(ids, deadline));
}

void AddValues(nb::module_& module) {
  nb::class_<client::Answer>(module, "Answer")
      .def_ro("found_blocks", &client::Answer::found_blocks)
      .def_prop_ro("lease", [](const client::Answer& answer) { return answer.lease.value(); })
      .def_prop_ro("tiers", &TiersOf)
      .def_ro("loaded_blocks", &client::Answer::loaded_blocks)
      .def_prop_ro("boundaries",
                   [](const client::Answer& answer) -> std::vector<std::uint32_t> {
                     if (!answer.boundaries.empty()) return answer.boundaries;
                     std::vector<std::uint32_t> every(answer.found_blocks);
                     std::iota(every.begin(), every.end(), 1U);
                     return every;
                   })
      .def_prop_ro("reason",
                   [](const client::Answer& answer) { return std::string(client::ReasonName(answer.reason)); })
      .def("__repr__", [](const client::Answer& answer) {
        return "Answer(found_blocks=" + std::to_string(answer.found_blocks) +
               ", lease=" + std::to_string(answer.lease.value()) + ", reason='" +
               std::string(client::ReasonName(answer.reason)) + "')";
      });
  nb::class_<client::Completion>(module, "Completion")
      .def_prop_ro("job", [](const client::Completion& done) { return done.job.value(); })
      .def_prop_ro("kind",
                   [](const client::Completion& done) {
                     return std::string(done.kind == client::JobKind::kPublish ? "publish" : "restore");
                   })
      .def_ro("tag", &client::Completion::tag)
      .def_ro("ok", &client::Completion::ok)
      .def_prop_ro("outcomes",
                   [](const client::Completion& done) {
                     return nb::bytes(reinterpret_cast<const char*>(done.outcomes.data()), done.outcomes.size());
                   })
      .def_ro("bytes", &client::Completion::bytes)
      .def_ro("error", &client::Completion::error)
      .def("__repr__", [](const client::Completion& done) {
        return "Completion(job=" + std::to_string(done.job.value()) + ", ok=" + (done.ok ? "True" : "False") +
               ", error='" + done.error + "')";
      });
}

}  // namespace

void AddClient(nb::module_& module) {
  AddValues(module);
  nb::class_<PyClient>(module, "Client")
      .def(nb::init<nb::handle>(), nb::arg("options"))
      .def_prop_ro("state", &PyClient::State)
      .def_prop_ro("incarnation", &PyClient::IncarnationOf)
      .def("wait_up", &PyClient::WaitUp, nb::arg("timeout_s"))
      .def("register_layout", &PyClient::RegisterLayout, nb::arg("layers"), nb::kw_only(), nb::arg("block_tokens"))
      .def("register_groups", &PyClient::RegisterGroups, nb::arg("groups"), nb::kw_only(),
           nb::arg("hash_block_tokens") = 0)
      .def("query", &PyClient::Query, nb::arg("request_id"), nb::arg("hashes"), nb::kw_only(),
           nb::arg("prefix_blocks") = 0, nb::arg("attempt") = 0, nb::arg("wait_s") = 200e-6,
           nb::arg("load_wait_s") = 0.0, nb::arg("load_wait_is_compute_time") = false, nb::arg("mode") = "longest",
           nb::arg("views") = nb::make_tuple())
      .def("warm_up", &PyClient::WarmUp, nb::arg("request_id"), nb::arg("hashes"), nb::kw_only(),
           nb::arg("prefix_blocks") = 0)
      .def("prepare", &PyClient::Prepare, nb::arg("request_id"), nb::arg("hashes"), nb::kw_only(), nb::arg("consumer"),
           nb::arg("prefix_blocks") = 0, nb::arg("load_wait_s") = 10.0)
      .def("claim", &PyClient::Claim, nb::arg("consumer"), nb::kw_only(), nb::arg("most_blocks"), nb::arg("ticket") = 0,
           nb::arg("wait_s") = 200e-6)
      .def("cancel_prepared", &PyClient::CancelPrepared, nb::arg("ticket"))
      .def("cancel_query", &PyClient::CancelQuery, nb::arg("request_id"))
      .def("begin_restore", &PyClient::BeginRestore, nb::arg("lease"), nb::arg("blocks"),
           nb::arg("ranks") = nb::make_tuple(0))
      .def("release_lease", &PyClient::ReleaseLease, nb::arg("lease"))
      .def("release_grant", &PyClient::ReleaseGrant, nb::arg("grant"))
      .def("restore", &PyClient::Restore, nb::arg("grant"), nb::arg("hashes"), nb::arg("block_ids"), nb::kw_only(),
           nb::arg("prefix_blocks") = 0, nb::arg("incarnation") = nb::bytes(""), nb::arg("tag") = 0,
           nb::arg("generations") = nb::none())
      .def("publish", &PyClient::Publish, nb::arg("hashes"), nb::arg("block_ids"), nb::kw_only(),
           nb::arg("runs") = nb::make_tuple(), nb::arg("first_depth") = 0, nb::arg("parent") = nb::bytes(""),
           nb::arg("prompt_tokens") = 0, nb::arg("answer_tokens") = 0, nb::arg("tag") = 0,
           nb::arg("generations") = nb::none())
      .def("renew_pages", &PyClient::RenewPages, nb::arg("block_ids"), nb::arg("generation"), nb::kw_only(),
           nb::arg("group") = 0)
      .def("job_state", &PyClient::JobState, nb::arg("job"))
      .def("wait_job", &PyClient::WaitJob, nb::arg("job"), nb::arg("timeout_s"))
      .def("wait_layers", &PyClient::WaitLayers, nb::arg("job"), nb::arg("known"), nb::arg("timeout_s"))
      .def("cancel_publish", &PyClient::CancelPublish, nb::arg("job"))
      .def("wait_sources_free", &PyClient::WaitSourcesFree, nb::arg("jobs"), nb::arg("timeout_s"))
      .def("poll", &PyClient::Poll)
      .def("completion_fd", [](const PyClient& client) { return client->completion_fd(); })
      .def("counters", &PyClient::Counters)
      .def("close", &PyClient::Close, nb::arg("timeout_s") = 5.0);
}

}  // namespace orbitkv::python
