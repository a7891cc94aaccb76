#include "orbitkv/channel/client_rings.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "orbitkv/channel/waiting.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/futex.h"

namespace orbitkv::channel {
namespace {

// The table is larger than the ring, so that answers that nobody has taken yet do not stop the rings. The low bits of a
// request id are its index.
constexpr std::uint32_t kIndexBits = 8;
constexpr std::uint32_t kEntries = 1U << kIndexBits;
constexpr std::uint32_t kReservedTable = 32;         // entries for never-lost commands
constexpr std::size_t kMaxAnswerBytes = 64U << 20U;  // all chunks together
constexpr std::size_t kKeptCapacity = 256U << 10U;   // payload memory that a free entry may keep
constexpr int kLooksPerClock = 32;

bool AnswersWithPayload(Command command) {
  return command == Command::kQuerySubmit || command == Command::kQueryPoll || command == Command::kQueryClaim ||
         command == Command::kPublishReserve || command == Command::kPublishCommit || command == Command::kRestorePlan;
}

}  // namespace

ClientRings::ClientRings(const Options& options, std::byte* session, const std::atomic<std::uint32_t>* asleep)
    : options_(options),
      limits_{.abi = options.abi,
              .session_epoch = options.session.value(),
              .slot_bytes = options.geometry.slot_bytes,
              .arena_bytes = options.geometry.arena_bytes()},
      session_(session),
      dispatcher_asleep_(asleep),
      requests_(session + options.geometry.request_ring_offset(), options.geometry.ring_entries, &header().request_head,
                &header().request_tail),
      answers_(session + options.geometry.answer_ring_offset(), options.geometry.ring_entries, &header().answer_head,
               &header().answer_tail),
      entries_(kEntries),
      free_slots_(options.geometry.slot_count == 64 ? ~0ULL : (1ULL << options.geometry.slot_count) - 1) {
  for (std::uint32_t i = kEntries; i > 0; --i) free_.push_back(i - 1);
}

std::byte* ClientRings::SlotBytes(int slot) const {
  return session_ + options_.geometry.arena_offset() + static_cast<std::uint64_t>(slot) * options_.geometry.slot_bytes;
}

Status ClientRings::Usable() const {
  if (shut_down_.load(std::memory_order_relaxed)) return Fail(Code::kUnavailable, "the session was shut down");
  if (broken_) return Fail(Code::kCorrupt, "the Manager's answer ring makes no sense; connect again");
  return {};
}

void ClientRings::SetState(Entry& entry, State state) {
  to_continue_ -= Continues(entry.state) ? 1 : 0;
  to_continue_ += Continues(state) ? 1 : 0;
  if ((entry.state == State::kDone) != (state == State::kDone)) {
    const std::uint32_t done = done_.load(std::memory_order_relaxed);
    done_.store(state == State::kDone ? done + 1 : done - 1, std::memory_order_relaxed);
  }
  entry.state = state;
}

ClientRings::Entry* ClientRings::Allocate(const Request& request, bool never_lost) {
  if (free_.size() <= (never_lost ? 0 : kReservedTable)) return nullptr;
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Entry& entry = entries_[index];
  entry.in_flight = false;
  entry.abandoned = false;
  entry.never_lost = never_lost;
  entry.command = request.command;
  entry.chunk = 0;
  entry.id = next_request_++ << kIndexBits | index;
  entry.scalar0 = request.scalar0;
  entry.scalar1 = request.scalar1;
  entry.deadline_ns = request.deadline_ns;
  return &entry;
}

ClientRings::Entry* ClientRings::AllocateWithSlot(const Request& request, bool never_lost) {
  Entry* entry = Allocate(request, never_lost);
  if (entry == nullptr) return nullptr;
  const bool needs_slot = !request.args.empty() || AnswersWithPayload(request.command);
  if (!needs_slot || TakeSlot(*entry)) return entry;
  Free(*entry);
  return nullptr;
}

void ClientRings::Free(Entry& entry) {
  SetState(entry, State::kFree);
  FreeSlot(entry);
  free_.push_back(static_cast<std::uint32_t>(entry.id & (kEntries - 1)));
  entry.id = 0;
  entry.args.Shrink(0);
  entry.answer.payload.Shrink(kKeptCapacity);
}

ClientRings::Entry* ClientRings::Find(RequestId id) {
  Entry& entry = entries_[id.value() & (kEntries - 1)];
  return id.is_none() || entry.id != id.value() || entry.abandoned || entry.never_lost ? nullptr : &entry;
}

bool ClientRings::TakeSlot(Entry& entry) {
  const auto free = static_cast<std::uint32_t>(std::popcount(free_slots_));
  if (free <= (entry.never_lost ? 0 : wire::kReservedSlots)) return false;
  entry.slot = std::countr_zero(free_slots_);
  free_slots_ &= free_slots_ - 1;
  return true;
}

void ClientRings::FreeSlot(Entry& entry) {
  if (entry.slot >= 0) free_slots_ |= 1ULL << static_cast<unsigned>(entry.slot);
  entry.slot = -1;
}

bool ClientRings::MayPush(bool never_lost) const {
  return in_flight_ < options_.geometry.ring_entries - (never_lost ? 0 : wire::kReservedEntries);
}

void ClientRings::Push(Entry& entry, std::uint32_t flags, std::uint32_t length, After& after) {
  entry.generation = next_generation_;
  next_generation_ += 2;
  entry.in_flight = true;
  ++in_flight_;
  const auto slot = static_cast<std::uint32_t>(entry.slot);
  const wire::Descriptor descriptor{
      .abi = options_.abi,
      .op = static_cast<std::uint16_t>(entry.command),
      .flags = flags,
      .generation = entry.generation,
      .request_id = entry.id,
      .session_epoch = options_.session.value(),
      .arena_offset = entry.slot < 0 ? wire::kNoArena : slot * options_.geometry.slot_bytes,
      .arena_length = length,
      .deadline_ns = entry.deadline_ns,
      .scalar0 = entry.scalar0,
      .scalar1 = entry.scalar1};
  // Unanswered descriptors fit the ring, so it is full only when the Manager's cursor makes no sense.
  if (!requests_.Push(descriptor)) broken_ = true;
  after.ring_doorbell = true;
}

void ClientRings::PushWhole(Entry& entry, std::span<const std::byte> args, After& after) {
  if (args.size() > options_.geometry.slot_bytes) {
    if (entry.args.empty()) entry.args.Assign(args);
    SetState(entry, State::kQueued);
    ContinueEntry(entry, after);
    return;
  }
  if (!args.empty()) std::memcpy(SlotBytes(entry.slot), args.data(), args.size());
  SetState(entry, State::kPosted);
  Push(entry, wire::kLastChunk, static_cast<std::uint32_t>(args.size()), after);
}

Result<RequestId> ClientRings::Post(const Request& request) {
  After after;
  Result<RequestId> result;
  {
    MutexLock lock(mutex_);
    result = PostLocked(request, after);
  }
  Do(after);
  return result;
}

Result<RequestId> ClientRings::PostLocked(const Request& request, After& after) {
  ORBITKV_TRY(Usable());
  if (request.args.size() > wire::kMaxArgumentBytes) {
    return Fail(Code::kInvalid, "the arguments of one request are larger than 40 MiB", request.args.size());
  }
  if (!answers_.empty()) PumpLocked(after);
  if (!MayPush(false)) return Fail(Code::kBusy, "too many requests are not answered yet");
  Entry* entry = AllocateWithSlot(request, false);
  if (entry == nullptr) return Fail(Code::kBusy, "every place for a request is taken; take answers first");
  PushWhole(*entry, request.args, after);
  return RequestId(entry->id);
}

Status ClientRings::PostNeverLost(Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                                  std::span<const std::byte> args) {
  After after;
  {
    MutexLock lock(mutex_);
    ORBITKV_TRY(Usable());
    if (args.size() > wire::kMaxArgumentBytes) return Fail(Code::kInvalid, "arguments larger than 40 MiB", args.size());
    if (kept_.size() + never_lost_in_flight_ >= ClientSession::kMaxNeverLost) {
      return Fail(Code::kBusy, "too many commands are not acknowledged yet", kept_.size());
    }
    NeverLost kept{.command = command, .scalar0 = scalar0, .scalar1 = scalar1};
    kept.args.Assign(args);
    kept_.push_back(std::move(kept));
    PumpLocked(after);
  }
  Do(after);
  return {};
}

void ClientRings::PostKept(After& after) {
  while (!kept_.empty() && MayPush(true)) {
    NeverLost& kept = kept_.front();
    const Request request{.command = kept.command,
                          .scalar0 = kept.scalar0,
                          .scalar1 = kept.scalar1,
                          .args = kept.args.bytes(),
                          .deadline_ns = os::kNoDeadline};
    Entry* entry = AllocateWithSlot(request, true);
    if (entry == nullptr) return;
    entry->args = std::move(kept.args);
    kept_.pop_front();
    ++never_lost_in_flight_;
    PushWhole(*entry, entry->args.bytes(), after);
  }
}

void ClientRings::PumpLocked(After& after) {
  wire::Descriptor answer;
  bool moved = false;
  // There is at most one answer for each entry of the ring; a Manager that writes more holds nobody up under the lock.
  for (std::uint32_t i = 0; i < options_.geometry.ring_entries && !broken_; ++i) {
    const Pop pop = answers_.Take(&answer);
    if (pop == Pop::kEmpty) break;
    moved = true;
    if (pop == Pop::kBroken) {
      broken_ = true;
    } else {
      Take(answer, after);
    }
  }
  if (to_continue_ > 0) Continue(after);
  if (!kept_.empty()) PostKept(after);
  if (!moved) return;
  taken_.store(answers_.tail(), std::memory_order_relaxed);
  moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  after.wake_others = waiters_ > 0;
}

void ClientRings::Take(const wire::Descriptor& copied, After& after) {
  const auto answer = wire::DecodeAnswer(copied, limits_);
  Entry& entry = entries_[copied.request_id & (kEntries - 1)];
  if (!answer || entry.id != answer->request_id || !entry.in_flight || answer->generation != entry.generation + 1) {
    ++stats_.foreign_answers;
    return;
  }
  entry.in_flight = false;
  --in_flight_;
  const auto status = static_cast<AnswerStatus>(answer->op);
  if (status != AnswerStatus::kMoreChunks) {
    TakePayload(entry, *answer, after);
  } else if (entry.state != State::kSending) {
    Finish(entry, AnswerStatus::kCorrupt, after);
  } else if (entry.abandoned) {
    Finish(entry, AnswerStatus::kTimedOut, after);  // the Manager drops the half of it at its deadline
  } else {
    ++entry.chunk;
  }
}

void ClientRings::TakePayload(Entry& entry, const wire::Descriptor& answer, After& after) {
  const bool fetched = entry.state == State::kFetching;
  if (!fetched) {
    entry.answer.payload.Clear();
    entry.answer.status = static_cast<AnswerStatus>(answer.op);
    entry.answer.scalar0 = answer.scalar0;
    entry.answer.scalar1 = answer.scalar1;
  }
  if (answer.arena_length > 0) {
    const auto offset = static_cast<std::uint64_t>(entry.slot) * options_.geometry.slot_bytes;
    const bool ours = entry.slot >= 0 && answer.arena_offset == offset && answer.chunk() == (fetched ? entry.chunk : 0);
    if (!ours || entry.answer.payload.size() + answer.arena_length > kMaxAnswerBytes) {
      Finish(entry, AnswerStatus::kCorrupt, after);
      return;
    }
    entry.answer.payload.Append({SlotBytes(entry.slot), answer.arena_length});
  }
  // Of a late answer only the scalars matter, so the rest of it is not fetched.
  if ((answer.flags & wire::kMoreAnswer) == 0 || entry.abandoned || entry.slot < 0) {
    Finish(entry, static_cast<AnswerStatus>(answer.op), after);
    return;
  }
  entry.chunk = answer.chunk() + 1;
  SetState(entry, State::kFetching);
}

void ClientRings::Finish(Entry& entry, AnswerStatus status, After& after) {
  if (sender_ == &entry) sender_ = nullptr;
  FreeSlot(entry);
  // The Manager did it, and the rest of its answer is lost: to the caller a failure, and a success to give back.
  const bool half_told = entry.state == State::kFetching && entry.answer.status == AnswerStatus::kOk;
  if (half_told && status != AnswerStatus::kOk) AddLate(entry, after);
  entry.answer.status = status;
  if (entry.never_lost) {
    FinishNeverLost(entry, status);
    Free(entry);
  } else if (entry.abandoned) {
    if (status == AnswerStatus::kOk) AddLate(entry, after);
    Free(entry);
  } else {
    SetState(entry, State::kDone);
  }
}

void ClientRings::AddLate(Entry& entry, After& after) {
  ++stats_.late_answers;
  after.late.push_back(
      {.what = {.command = entry.command, .request_scalar0 = entry.scalar0, .request_scalar1 = entry.scalar1},
       .answer = std::exchange(entry.answer, Answer{})});
}

// Acknowledged is whatever the Manager has decided; these statuses say that it has not.
void ClientRings::FinishNeverLost(Entry& entry, AnswerStatus status) {
  --never_lost_in_flight_;
  if (status != AnswerStatus::kTimedOut && status != AnswerStatus::kBusy && status != AnswerStatus::kNotYet) return;
  ++stats_.resent;
  kept_.push_back(
      {.command = entry.command, .scalar0 = entry.scalar0, .scalar1 = entry.scalar1, .args = std::move(entry.args)});
}

void ClientRings::Continue(After& after) {
  const std::uint64_t now = os::MonotonicNs();
  for (Entry& entry : entries_) {
    if (!Continues(entry.state) || entry.in_flight) continue;
    if (entry.deadline_ns <= now) {
      Finish(entry, AnswerStatus::kTimedOut, after);
    } else {
      ContinueEntry(entry, after);
    }
  }
}

void ClientRings::ContinueEntry(Entry& entry, After& after) {
  if (entry.state == State::kQueued) {
    if (sender_ != nullptr) return;
    sender_ = &entry;
    SetState(entry, State::kSending);
  }
  if (!MayPush(entry.never_lost)) return;
  if (entry.state == State::kFetching) {
    Push(entry, wire::kFetch | entry.chunk << 16U, 0, after);
    return;
  }
  const std::size_t slot_bytes = options_.geometry.slot_bytes;
  const std::size_t begin = entry.chunk * slot_bytes;
  const auto rest = entry.args.bytes().subspan(begin);
  const auto piece = rest.first(std::min(slot_bytes, rest.size()));
  const bool last = piece.size() == rest.size();
  std::memcpy(SlotBytes(entry.slot), piece.data(), piece.size());
  Push(entry, entry.chunk << 16U | (last ? wire::kLastChunk : 0), static_cast<std::uint32_t>(piece.size()), after);
  if (!last) return;
  // The ring keeps the order, so the next assembly cannot begin before this one is complete.
  sender_ = nullptr;
  SetState(entry, State::kPosted);
}

Result<bool> ClientRings::TakeAnswer(RequestId id, Answer* answer) {
  Entry* entry = Find(id);
  if (entry == nullptr) return Fail(Code::kStale, "no request with this id waits for an answer", id.value());
  if (entry->state != State::kDone) {
    ORBITKV_TRY(Usable());
    return false;
  }
  answer->status = entry->answer.status;
  answer->scalar0 = entry->answer.scalar0;
  answer->scalar1 = entry->answer.scalar1;
  std::swap(answer->payload, entry->answer.payload);
  Free(*entry);
  return true;
}

Result<bool> ClientRings::TryTakeInto(RequestId id, Answer* answer) {
  After after;
  Result<bool> taken;
  {
    MutexLock lock(mutex_);
    PumpLocked(after);
    taken = TakeAnswer(id, answer);
  }
  Do(after);
  return taken;
}

Status ClientRings::WaitInto(RequestId id, std::uint64_t until_ns, Answer* answer) {
  bool counted = false;
  bool looked = false;
  std::uint64_t slept = 0;
  std::uint64_t spin_end = 0;
  // Most often the answer is a few hundred nanoseconds away: not worth the lock before it is there.
  for (int i = 0; i < kLooksPerClock && done_.load(std::memory_order_relaxed) == 0 && !Arrived(); ++i) SpinPause();
  for (;;) {
    After after;
    Result<bool> taken;
    std::uint32_t seen_moves = 0;
    {
      MutexLock lock(mutex_);
      PumpLocked(after);
      taken = TakeAnswer(id, answer);
      const bool leave = !taken || *taken || (looked && os::MonotonicNs() >= until_ns);
      if (counted && leave) --waiters_;
      stats_.sleeps += std::exchange(slept, 0);
      after.wake_others = after.wake_others && waiters_ > (counted && !leave ? 1U : 0U);
      if (!counted && !leave) ++waiters_;
      counted = !leave;
      seen_moves = moves_.load(std::memory_order_relaxed);
    }
    Do(after);
    if (!taken) return std::unexpected(taken.error());
    if (*taken) return {};
    if (!counted) return Fail(Code::kTimedOut, "the Manager has not answered yet");
    // A few looks without asking for the time, then a bounded spin, then sleep.
    bool changed = false;
    for (int i = 0; i < kLooksPerClock && !changed; ++i, SpinPause()) changed = Changed(seen_moves);
    if (!looked) spin_end = std::min(os::DeadlineAfter(options_.spin_ns), until_ns);
    looked = true;
    while (!changed && os::MonotonicNs() < spin_end) {
      for (int i = 0; i < kLooksPerClock && !changed; ++i, SpinPause()) changed = Changed(seen_moves);
    }
    // A sleep whose end has passed would still give the processor away.
    if (changed || os::MonotonicNs() >= until_ns) continue;
    AnnounceSleep(header().client_asleep);
    if (Changed(seen_moves)) continue;
    os::FutexWait(&header().client_asleep, 1, until_ns);
    slept = 1;
  }
}

bool ClientRings::Arrived() const {
  return header().answer_head.load(std::memory_order_acquire) != taken_.load(std::memory_order_relaxed);
}

bool ClientRings::Changed(std::uint32_t seen_moves) const {
  return Arrived() || moves_.load(std::memory_order_acquire) != seen_moves ||
         shut_down_.load(std::memory_order_relaxed);
}

void ClientRings::Abandon(RequestId id) {
  After after;
  {
    MutexLock lock(mutex_);
    PumpLocked(after);
    if (Entry* entry = Find(id); entry != nullptr) {
      entry->abandoned = true;
      // With nothing in the rings, what is known now is all there will be.
      if (!entry->in_flight) {
        const bool done = entry->state == State::kDone || entry->state == State::kFetching;
        Finish(*entry, done ? entry->answer.status : AnswerStatus::kTimedOut, after);
      }
    }
  }
  Do(after);
}

void ClientRings::WaitCompletions(std::uint32_t seen, std::uint64_t until_ns) const {
  if (shut_down_.load(std::memory_order_acquire)) return;
  os::FutexWait(&header().completions, seen, until_ns);
}

void ClientRings::Pump() {
  After after;
  {
    MutexLock lock(mutex_);
    PumpLocked(after);
  }
  Do(after);
}

void ClientRings::Shutdown() {
  {
    MutexLock lock(mutex_);
    shut_down_.store(true, std::memory_order_relaxed);
    moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  WakeWaiters();
  // Whoever sleeps there sees that nothing comes any more.
  header().completions.fetch_add(1, std::memory_order_release);
  os::FutexWake(&header().completions, std::numeric_limits<int>::max());
}

// The same protocol as the Manager's: what another thread took out of the ring is published before the flag is read.
void ClientRings::WakeWaiters() {
  std::atomic<std::uint32_t>& asleep = header().client_asleep;
  if (!SleeperAnnounced(asleep)) return;
  asleep.store(0, std::memory_order_relaxed);
  os::FutexWake(&asleep, std::numeric_limits<int>::max());
}

void ClientRings::Do(After& after) {
  if (after.ring_doorbell && SleeperAnnounced(*dispatcher_asleep_)) os::SignalEventFd(options_.doorbell_fd);
  if (after.wake_others) WakeWaiters();
  for (Late& late : after.late) {
    late.what.answer = &late.answer;
    if (options_.late_answer) options_.late_answer(late.what);
  }
}

bool ClientRings::broken() const {
  MutexLock lock(mutex_);
  return broken_;
}

std::size_t ClientRings::unacknowledged() const {
  MutexLock lock(mutex_);
  return kept_.size() + never_lost_in_flight_;
}

std::size_t ClientRings::pending() const {
  MutexLock lock(mutex_);
  return kEntries - free_.size() - done_.load(std::memory_order_relaxed) + kept_.size();
}

ClientSessionStats ClientRings::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace orbitkv::channel
