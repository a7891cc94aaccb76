#include "orbitkv/channel/server_session.h"

#include <algorithm>
#include <limits>
#include <new>

#include "orbitkv/base/check.h"
#include "orbitkv/channel/waiting.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/futex.h"
#include "orbitkv/os/memfd.h"

namespace orbitkv::channel {
namespace {

// Argument memory that an idle table entry may keep.
constexpr std::size_t kKeptCapacity = 256U << 10U;

}  // namespace

Result<std::unique_ptr<ServerSession>> ServerSession::Create(const ServerSessionOptions& options) {
  const wire::SessionGeometry& geometry = options.geometry;
  ORBITKV_TRY(geometry.Validate());
  std::unique_ptr<ServerSession> session(new ServerSession(options));
  ORBITKV_ASSIGN_OR_RETURN(session->memfd_, os::CreateMemfd("orbitkv-session", geometry.total_bytes()));
  // Reserved now, so that a full memory is an error here and not a signal at the first touch.
  ORBITKV_TRY(os::Reserve(session->memfd_.get(), 0, geometry.total_bytes()));
  ORBITKV_TRY(os::SealSize(session->memfd_.get()));
  ORBITKV_ASSIGN_OR_RETURN(session->mapping_,
                           os::Mapping::Map(session->memfd_.get(), geometry.total_bytes(), os::Access::kReadWrite));
  ORBITKV_ASSIGN_OR_RETURN(session->doorbell_, os::EventFd::Create());
  auto* header = new (session->mapping_.data()) wire::SessionHeader{};
  header->magic = wire::kSessionMagic;
  header->abi = options.abi;
  header->ring_entries = geometry.ring_entries;
  header->slot_count = geometry.slot_count;
  header->slot_bytes = geometry.slot_bytes;
  header->session_epoch = options.session.value();
  std::byte* base = session->mapping_.data();
  session->requests_ = RingConsumer(base + geometry.request_ring_offset(), geometry.ring_entries, &header->request_head,
                                    &header->request_tail);
  session->answers_ = RingProducer(base + geometry.answer_ring_offset(), geometry.ring_entries, &header->answer_head,
                                   &header->answer_tail);
  session->limits_ = {.abi = options.abi,
                      .session_epoch = options.session.value(),
                      .slot_bytes = geometry.slot_bytes,
                      .arena_bytes = geometry.arena_bytes()};
  session->open_.resize(geometry.ring_entries);
  for (std::uint32_t i = geometry.ring_entries; i > 0; --i) session->free_.push_back(i - 1);
  return session;
}

std::span<std::byte> ServerSession::Slot(std::uint32_t arena_offset) const {
  return {mapping_.data() + options_.geometry.arena_offset() + arena_offset, options_.geometry.slot_bytes};
}

// An answer's place in the ring is set aside before its request is taken, so that Answer never waits for the client.
bool ServerSession::HasCredit() const {
  const auto needed = static_cast<std::uint32_t>(open_count_) + 1;
  return needed <= options_.geometry.ring_entries && answers_.Free(needed) >= needed;
}

bool ServerSession::HasRequests() const { return !broken_ && !requests_.empty() && HasCredit(); }

std::optional<ReceivedRequest> ServerSession::Next(std::uint64_t now_ns) {
  Expire(now_ns);
  while (!broken_ && HasCredit()) {
    wire::Descriptor request;
    const Pop pop = requests_.Take(&request);
    if (pop == Pop::kEmpty) break;
    if (pop == Pop::kBroken) {
      broken_ = true;
      break;
    }
    ++stats_.requests;
    if (Refuse(request, now_ns)) continue;
    if (idle_rings_ > 0) --idle_rings_;
    if ((request.flags & wire::kFetch) != 0) {
      AnswerFetch(request);
      continue;
    }
    const bool whole = request.chunk() == 0 && (request.flags & wire::kLastChunk) != 0;
    if (!whole && !TakeChunk(request, now_ns)) continue;
    return OpenRequest(request);
  }
  return std::nullopt;
}

// A session that keeps sending what it must not costs the others turns of the dispatcher: it loses its own.
void ServerSession::Blame() {
  ++stats_.malformed;
  blame_ += kBlamePerFault;
  if (blame_ >= kMostBlame) broken_ = true;
}

// Answers what is not to be executed; false for a request in good order.
bool ServerSession::Refuse(const wire::Descriptor& request, std::uint64_t now_ns) {
  const bool current = request.generation == next_generation_;
  if (current) next_generation_ += 2;
  const auto decoded = wire::DecodeRequest(request, limits_);
  if (!decoded || !current) {
    Blame();
    Push(request, decoded ? wire::AnswerStatus::kStale : wire::StatusOf(decoded.error().code));
    return true;
  }
  if (request.deadline_ns <= now_ns) {
    ++stats_.expired;
    if (assembly_.request_id == request.request_id) assembly_ = {};
    Push(request, wire::AnswerStatus::kTimedOut);
    return true;
  }
  return false;
}

// Adds one chunk of large arguments. True when they are complete; otherwise the chunk has been answered.
bool ServerSession::TakeChunk(const wire::Descriptor& request, std::uint64_t now_ns) {
  if (request.chunk() == 0) {
    assembly_.request_id = request.request_id;
    assembly_.op = request.op;
    assembly_.next_chunk = 0;
    assembly_.deadline_ns = std::min(request.deadline_ns, now_ns + kLongestAssemblyNs);
    assembly_.bytes.Clear();
  }
  const bool expected = assembly_.request_id == request.request_id && assembly_.op == request.op &&
                        assembly_.next_chunk == request.chunk() && request.arena_offset != wire::kNoArena;
  if (!expected || assembly_.bytes.size() + request.arena_length > wire::kMaxArgumentBytes) {
    Blame();
    if (assembly_.request_id == request.request_id) assembly_ = {};
    Push(request, wire::AnswerStatus::kInvalid);
    return false;
  }
  assembly_.bytes.Append(Slot(request.arena_offset).first(request.arena_length));
  ++assembly_.next_chunk;
  if ((request.flags & wire::kLastChunk) != 0) return true;
  Push(request, wire::AnswerStatus::kMoreChunks);
  return false;
}

ReceivedRequest ServerSession::OpenRequest(const wire::Descriptor& request) {
  ORBITKV_CHECK(!free_.empty());
  if (blame_ > 0) --blame_;
  const std::uint32_t index = free_.back();
  free_.pop_back();
  ++open_count_;
  Open& open = open_[index];
  open.serial = next_serial_++;
  open.descriptor = request;
  if (request.chunk() != 0) {
    open.args = std::move(assembly_.bytes);
    assembly_ = {};
  } else if (request.arena_length > 0) {
    open.args.Assign(Slot(request.arena_offset).first(request.arena_length));
  } else {
    open.args.Clear();
  }
  return {.handle = {index, open.serial},
          .command = static_cast<wire::Command>(request.op),
          .scalar0 = request.scalar0,
          .scalar1 = request.scalar1,
          .deadline_ns = request.deadline_ns,
          .args = open.args.bytes()};
}

void ServerSession::Answer(RequestHandle handle, wire::AnswerStatus status, std::uint64_t scalar0,
                           std::uint64_t scalar1, std::span<const std::byte> payload) {
  ORBITKV_CHECK(handle.index < open_.size() && handle.serial != 0 && open_[handle.index].serial == handle.serial);
  Open& open = open_[handle.index];
  open.serial = 0;
  --open_count_;
  free_.push_back(handle.index);
  const wire::Descriptor& request = open.descriptor;
  const std::uint32_t slot_bytes = options_.geometry.slot_bytes;
  if (payload.empty()) {
    Push(request, status, scalar0, scalar1);
  } else if (request.arena_offset == wire::kNoArena) {
    Push(request, wire::AnswerStatus::kInvalid);  // a command with an answer payload, sent without a place for it
  } else {
    const auto length = static_cast<std::uint32_t>(std::min<std::size_t>(payload.size(), slot_bytes));
    const bool more = payload.size() > slot_bytes;
    if (more) Keep(request, status, scalar0, scalar1, payload);
    std::memcpy(Slot(request.arena_offset).data(), payload.data(), length);
    Push(request, status, scalar0, scalar1, length, more ? wire::kMoreAnswer : 0);
  }
  open.args.Shrink(kKeptCapacity);
}

void ServerSession::Keep(const wire::Descriptor& request, wire::AnswerStatus status, std::uint64_t scalar0,
                         std::uint64_t scalar1, std::span<const std::byte> payload) {
  // A free place, or else the oldest answer's: its client is told kGone if it still comes.
  auto place = std::min_element(kept_.begin(), kept_.end(), [](const Kept& a, const Kept& b) {
    return (a.request_id == 0 ? 0 : a.order) < (b.request_id == 0 ? 0 : b.order);
  });
  if (place->request_id == 0) ++kept_count_;
  place->request_id = request.request_id;
  place->order = ++kept_order_;
  place->deadline_ns = request.deadline_ns;
  place->status = status;
  place->scalar0 = scalar0;
  place->scalar1 = scalar1;
  place->payload.Assign(payload);
}

void ServerSession::AnswerFetch(const wire::Descriptor& request) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(),
                                 [&request](const Kept& k) { return k.request_id == request.request_id; });
  if (kept == kept_.end()) {
    Push(request, wire::AnswerStatus::kGone);
    return;
  }
  const std::uint64_t slot_bytes = options_.geometry.slot_bytes;
  const std::uint64_t begin = request.chunk() * slot_bytes;
  const auto payload = kept->payload.bytes();
  if (begin >= payload.size()) {
    Blame();
    Push(request, wire::AnswerStatus::kInvalid);
    return;
  }
  const auto piece = payload.subspan(begin, std::min<std::uint64_t>(slot_bytes, payload.size() - begin));
  std::memcpy(Slot(request.arena_offset).data(), piece.data(), piece.size());
  const bool more = begin + piece.size() < payload.size();
  Push(request, kept->status, kept->scalar0, kept->scalar1, static_cast<std::uint32_t>(piece.size()),
       request.chunk() << 16U | (more ? wire::kMoreAnswer : 0));
  if (!more) {
    *kept = {};
    --kept_count_;
  }
}

bool ServerSession::Rang() {
  const bool idle = !HasRequests() && stats_.requests == requests_at_ring_;
  requests_at_ring_ = stats_.requests;
  if (!idle) return false;
  ++stats_.idle_rings;
  if (++idle_rings_ < kMostIdleRings) return false;
  idle_rings_ = kMostIdleRings - kIdleRingsAfterMute;
  return true;
}

std::uint64_t ServerSession::NextDeadline() const {
  std::uint64_t next_ns = assembly_.request_id != 0 ? assembly_.deadline_ns : os::kNoDeadline;
  if (kept_count_ == 0) return next_ns;
  for (const Kept& kept : kept_) {
    if (kept.request_id != 0) next_ns = std::min(next_ns, kept.deadline_ns);
  }
  return next_ns;
}

void ServerSession::Expire(std::uint64_t now_ns) {
  if (assembly_.request_id != 0 && assembly_.deadline_ns <= now_ns) assembly_ = {};
  if (kept_count_ == 0) return;
  for (Kept& kept : kept_) {
    if (kept.request_id == 0 || kept.deadline_ns > now_ns) continue;
    kept = {};
    --kept_count_;
  }
}

void ServerSession::Push(const wire::Descriptor& request, wire::AnswerStatus status, std::uint64_t scalar0,
                         std::uint64_t scalar1, std::uint32_t length, std::uint32_t flags) {
  const wire::Descriptor answer{.abi = options_.abi,
                                .op = static_cast<std::uint16_t>(status),
                                .flags = flags,
                                .generation = (request.generation | 1U) + 1,
                                .request_id = request.request_id,
                                .session_epoch = options_.session.value(),
                                .arena_offset = length > 0 ? request.arena_offset : wire::kNoArena,
                                .arena_length = length,
                                .deadline_ns = request.deadline_ns,
                                .scalar0 = scalar0,
                                .scalar1 = scalar1};
  // Credit was set aside before the request was taken. A client that moves its cursor back loses its answers.
  if (!answers_.Push(answer)) broken_ = true;
  answered_ = true;
}

void ServerSession::FlushWake() {
  if (!answered_) return;
  answered_ = false;
  std::atomic<std::uint32_t>& asleep = header().client_asleep;
  if (!SleeperAnnounced(asleep)) return;
  asleep.store(0, std::memory_order_relaxed);
  os::FutexWake(&asleep, std::numeric_limits<int>::max());
}

void ServerSession::SignalCompletion() {
  std::atomic<std::uint32_t>& completions = header().completions;
  completions.fetch_add(1, std::memory_order_release);
  os::FutexWake(&completions, std::numeric_limits<int>::max());
}

}  // namespace orbitkv::channel
