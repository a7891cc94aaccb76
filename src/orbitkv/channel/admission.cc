#include "orbitkv/channel/admission.h"

#include <fmt/format.h>
#include <utility>

#include "orbitkv/os/pidfd.h"

namespace orbitkv::channel {
namespace {

// Places for status tools are their own, so that full engines can still be looked at.
std::optional<wire::Refusal> JudgePlaces(const BootstrapOptions& options, bool admin, const Places& places) {
  const std::size_t limit = admin ? options.max_admin_sessions : options.max_sessions;
  if (places.taken(limit) < limit) return std::nullopt;
  if (admin) {
    return RefusalOf(options, Code::kBusy, fmt::format("{} status tools are connected, which is the limit", limit));
  }
  std::string text = fmt::format(
      "all {} sessions are taken; start the Manager with a larger --max-sessions or end other clients", limit);
  if (places.detached > limit) {
    text += fmt::format("; {} more have lost their connection and wait for their process to end or to report drained",
                        places.detached);
  }
  return RefusalOf(options, Code::kBusy, std::move(text));
}

}  // namespace

wire::Refusal RefusalOf(const BootstrapOptions& options, Code code, std::string text) {
  return {.code = code, .text = std::move(text), .abi_min = options.abi_min, .abi_max = options.abi_max};
}

std::optional<wire::Refusal> JudgeGreeting(const BootstrapOptions& options, const Greeting& greeting,
                                           const Places& places, std::uint64_t wait_ns) {
  const auto& [peer, hello, fds] = greeting;
  const auto refuse = [&options](Code code, std::string text) { return RefusalOf(options, code, std::move(text)); };
  if (peer.uid != os::OwnUid()) {
    return refuse(Code::kRefused, fmt::format("this Manager serves uid {}, the client runs as uid {}; run both as one "
                                              "user",
                                              os::OwnUid(), peer.uid));
  }
  if (hello.abi_max < options.abi_min || hello.abi_min > options.abi_max) {
    return refuse(Code::kUnsupported,
                  fmt::format("no common ABI version: the Manager speaks {} to {}, the client {} to {}; install one "
                              "release of both",
                              options.abi_min, options.abi_max, hello.abi_min, hello.abi_max));
  }
  if (auto full = JudgePlaces(options, hello.purpose == wire::Purpose::kAdmin, places)) return full;
  if (fds.size() != 1) {
    return refuse(Code::kInvalid, "the greeting must carry the client's own pidfd and nothing else");
  }
  if (wait_ns > 0) {
    return refuse(Code::kBusy,
                  fmt::format("process {} opens and ends sessions too fast; it may open another one in {} ms", peer.pid,
                              wait_ns / 1'000'000 + 1));
  }
  const auto pid = os::PidOf(fds.front().get());
  if (!pid) return refuse(Code::kInvalid, "the descriptor of the greeting is not a pidfd");
  if (peer.pid != 0 && *pid != 0 && *pid != peer.pid) {
    return refuse(Code::kRefused,
                  fmt::format("the pidfd is of process {}, the connection of process {}", *pid, peer.pid));
  }
  return std::nullopt;
}

}  // namespace orbitkv::channel
