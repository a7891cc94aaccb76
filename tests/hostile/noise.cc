#include "noise.h"

#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "raw_session.h"

namespace orbitkv::hostile {

using wire::Command;

namespace {

constexpr std::uint64_t kRingsBeforeReady = 400'000;
constexpr std::uint64_t kSessionsBeforeReady = 1000;

}  // namespace

void Scribble(std::span<std::byte> memory, Prng& prng) {
  const std::uint64_t word = prng.Next();
  std::memcpy(memory.data() + prng.Below(memory.size() - sizeof word), &word, sizeof word);
}

// Commands in good order but for what chance makes of them, at full speed, with a new session when one is spent.
void SpeakNoise(const std::string& socket, std::uint64_t seed, const std::function<void()>& ready,
                std::uint64_t per_session) {
  Prng prng(seed);
  bool told = false;
  for (;;) {
    auto session = RawSession::Connect(socket);
    if (!session && session.error().code == Code::kBusy) continue;
    if (!session || !session->Register("noise")) return;
    if (!std::exchange(told, true)) ready();
    for (std::uint64_t i = 0; i < per_session; ++i) {
      while (session->Take()) {
      }
      if (!session->has_room()) {
        // Slow or no longer served: what is there goes on changing, and the doorbell goes on ringing.
        Scribble(session->memory().subspan(sizeof(wire::SessionHeader)), prng);
        session->RingDoorbell();
        continue;
      }
      wire::Descriptor request = session->Good(static_cast<Command>(prng.Below(14)));
      request.request_id = prng.Below(8);
      request.scalar0 = prng.Below(16);
      request.scalar1 = prng.Below(16);
      if (prng.Below(2) == 0) {
        request.arena_offset = static_cast<std::uint32_t>(prng.Below(session->welcome().geometry.slot_count)) *
                               session->welcome().geometry.slot_bytes;
        request.arena_length = static_cast<std::uint32_t>(prng.Below(4096)) * 8 % 4096;
        for (int n = 0; n < 8; ++n) Scribble({session->Slot(0), 4096}, prng);
      }
      if (prng.Below(3) == 0) request.flags = static_cast<std::uint32_t>(prng.Below(1U << 18U));
      if (prng.Below(20) == 0) Scribble({reinterpret_cast<std::byte*>(&request), sizeof request}, prng);
      session->Push(request);
    }
  }
}

void RingForNothing(const std::string& socket, const std::function<void()>& ready) {
  auto session = RawSession::Connect(socket);
  if (!session) return;
  for (std::uint64_t i = 0;; ++i) {
    session->RingDoorbell();
    if (i == kRingsBeforeReady) ready();
  }
}

void Reconnect(const std::string& socket, const std::function<void()>& ready) {
  bool told = false;
  for (std::uint64_t i = 0;; ++i) {
    std::string refusal;
    const auto session = RawSession::Connect(socket, &refusal);
    if (!session && session.error().code != Code::kBusy) return;
    const bool slowed = refusal.find("too fast") != std::string::npos;
    if ((slowed || i == kSessionsBeforeReady) && !std::exchange(told, true)) ready();
  }
}

void ForkForEachConnection(const std::string& socket, const std::function<void()>& ready) {
  for (std::uint64_t i = 0;; ++i) {
    const pid_t child = ::fork();
    if (child < 0) return;
    if (child == 0) {
      static_cast<void>(RawSession::Connect(socket));
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    if (i == 20) ready();
  }
}

}  // namespace orbitkv::hostile
