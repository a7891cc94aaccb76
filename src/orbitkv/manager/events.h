// What other threads tell the dispatcher, in the order they told it.
//
// Owns: the events until they are taken, with the sessions inside them.
// Threads: Post any; Take the dispatcher. Blocks: for the queue's lock only.
// Limits: lifecycle frames are bounded in number and bytes, because clients decide how many they send; what is beyond
//         loses its payload and is only there to be answered busy, a few for each connection. Everything else
//         is bounded by the number of sessions, loads, saves, verifications and pool steps.
// Errors: none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/server_session.h"
#include "orbitkv/service/source.h"

namespace orbitkv::manager {

struct SessionOpened {
  std::unique_ptr<channel::ServerSession> session;
};
struct FrameArrived {
  SessionId session;
  std::uint64_t frame_id = 0;
  std::uint32_t kind = 0;
  std::vector<std::byte> payload;
  bool dropped = false;  // beyond the queue's bounds: without its payload
};
struct SessionHungUp {
  SessionId session;
};
struct SessionDied {
  SessionId session;
};
struct MemoryReserved {
  std::uint64_t bytes = 0;
};
struct SlotLoaded {
  std::uint64_t id = 0;
  service::LoadResult result = service::LoadResult::kOk;
  std::uint64_t checksum = 0;
};
struct SlotSaved {
  std::uint64_t id = 0;
  service::SaveResult result = service::SaveResult::kSaved;
};
// The process of a session of an earlier life is gone.
struct EarlierSessionGone {
  std::uint32_t row = 0;
};
struct SlotVerified {
  std::uint64_t request_id = 0;
  bool equal = false;
};
using Event = std::variant<SessionOpened, FrameArrived, SessionHungUp, SessionDied, MemoryReserved, SlotLoaded,
                           SlotSaved, SlotVerified, EarlierSessionGone>;

class EventQueue {
 public:
  static constexpr std::size_t kMaxFrames = 1024;
  static constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20U;  // of their payloads together

  void Post(Event event) ORBITKV_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (auto* frame = std::get_if<FrameArrived>(&event)) {
      if (frames_ >= kMaxFrames || frame->payload.size() > kMaxFrameBytes - frame_bytes_) {
        ++dropped_;
        frame->dropped = true;
        frame->payload = {};
      } else {
        ++frames_;
        frame_bytes_ += frame->payload.size();
      }
    }
    events_.push_back(std::move(event));
    some_.store(true, std::memory_order_release);
  }

  // Replaces out's content with everything that is queued.
  void Take(std::vector<Event>& out) ORBITKV_EXCLUDES(mutex_) {
    out.clear();
    if (!some_.load(std::memory_order_acquire)) return;  // most often: a look costs no lock
    MutexLock lock(mutex_);
    some_.store(false, std::memory_order_relaxed);
    std::swap(out, events_);
    frames_ = 0;
    frame_bytes_ = 0;
  }

  std::uint64_t dropped_frames() ORBITKV_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return dropped_;
  }

 private:
  Mutex mutex_;
  std::atomic<bool> some_{false};
  std::vector<Event> events_ ORBITKV_GUARDED_BY(mutex_);
  std::size_t frames_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::size_t frame_bytes_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::uint64_t dropped_ ORBITKV_GUARDED_BY(mutex_) = 0;
};

}  // namespace orbitkv::manager
