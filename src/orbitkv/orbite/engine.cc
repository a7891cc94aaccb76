#include "orbitkv/orbite/engine.h"

#include <algorithm>
#include <cerrno>

#include "orbitkv/base/check.h"

namespace orbitkv::orbite {
namespace {

// A token names a move to the backend: the batch's generation, its place and the move's number in it.
constexpr unsigned kGenerationShift = 32;
constexpr unsigned kPlaceShift = 16;
constexpr std::uint64_t kLow16 = 0xffff;

std::uint64_t Token(std::uint32_t generation, std::uint64_t place, std::uint64_t move) {
  return (std::uint64_t{generation} << kGenerationShift) | (place << kPlaceShift) | move;
}
std::uint64_t PlaceOf(std::uint64_t token) { return (token >> kPlaceShift) & kLow16; }
std::uint64_t MoveOf(std::uint64_t token) { return token & kLow16; }

Error FromErrno(int sys_errno) {
  Error error{Code::kIo, sys_errno, "a transfer failed", 0, 0};
  switch (sys_errno) {
    case ENOSPC:
    case EDQUOT: error.code = Code::kExhausted; break;
    case ENODEV:
    case ENXIO: error.code = Code::kUnavailable; break;
    default: break;
  }
  return error;
}

}  // namespace

Engine::~Engine() { ORBITKV_CHECK(open_batches_ == 0); }

const Engine::Region* Engine::Find(RegionId id) const {
  if (id.index >= regions_.size()) return nullptr;
  const Region& region = regions_[id.index];
  return region.used && region.generation == id.generation ? &region : nullptr;
}

RegionId Engine::Add(const Region& region) {
  std::size_t index = 0;
  while (index < regions_.size() && regions_[index].used) ++index;
  if (index == regions_.size()) regions_.emplace_back();
  const std::uint64_t generation = regions_[index].generation + 1;
  regions_[index] = region;
  regions_[index].used = true;
  regions_[index].generation = generation;
  return {static_cast<std::uint32_t>(index), generation};
}

RegionId Engine::AddMemory(std::span<std::byte> memory, OwnerId owner) {
  Region region;
  region.memory = memory.data();
  region.bytes = memory.size();
  region.owner = owner;
  return Add(region);
}

RegionId Engine::AddFile(std::uint32_t far, std::uint64_t bytes, OwnerId owner) {
  Region region;
  region.file = true;
  region.far = far;
  region.bytes = bytes;
  region.owner = owner;
  return Add(region);
}

bool Engine::Usable(RegionId id) const {
  const Region* region = Find(id);
  return region != nullptr && !region->closing;
}

bool Engine::Gone(RegionId id) const { return Find(id) == nullptr; }

void Engine::Remove(RegionId id) {
  if (Find(id) == nullptr) return;
  Region& region = regions_[id.index];
  region.closing = true;
  if (region.batches == 0) region.used = false;
}

void Engine::Cancel(OwnerId owner) {
  for (std::size_t place = 0; place < open_.size(); ++place) {
    Open& open = *open_[place];
    const bool touches = open.used && std::ranges::any_of(open.regions, [&](RegionId id) {
                           const Region* region = Find(id);
                           return region != nullptr && region->owner == owner;
                         });
    if (touches) FailBatch(open, Error{Code::kCancelled, 0, "its owner gave it up", 0, 0});
    if (touches && open.left == 0) ended_.push_back(static_cast<std::uint32_t>(place));
  }
  for (std::size_t index = 0; index < regions_.size(); ++index) {
    if (regions_[index].used && regions_[index].owner == owner) {
      Remove({static_cast<std::uint32_t>(index), regions_[index].generation});
    }
  }
}

Status Engine::Check(const Range& range) const {
  const Region* from = Find(range.from.region);
  const Region* to = Find(range.to.region);
  if (from == nullptr || to == nullptr || from->closing || to->closing) {
    return Fail(Code::kStale, "a region is gone", range.from.region.index, range.to.region.index);
  }
  if (from->file == to->file) return Fail(Code::kUnsupported, "one side is memory, the other is not");
  for (const auto& [region, offset] : {std::pair(from, range.from.offset), std::pair(to, range.to.offset)}) {
    if (offset > region->bytes || range.bytes > region->bytes - offset) {
      return Fail(Code::kInvalid, "a range lies outside its region", offset, range.bytes);
    }
  }
  return range.bytes > 0 ? Status() : Fail(Code::kInvalid, "a range of no bytes");
}

// Ranges that follow each other on the far side become one operation with several pieces.
void Engine::Append(Open& open, const Range& range) const {
  const Region& from = *Find(range.from.region);
  const Region& to = *Find(range.to.region);
  const Region& far = from.file ? from : to;
  const Place& far_place = from.file ? range.from : range.to;
  const Region& near = from.file ? to : from;
  const Place& near_place = from.file ? range.to : range.from;
  const OperationKind kind = from.file ? OperationKind::kRead : OperationKind::kWrite;
  const os::IoPiece piece{near.memory + near_place.offset, range.bytes};
  if (!open.moves.empty()) {
    Move& last = open.moves.back();
    if (last.kind == kind && last.far == far.far && last.offset + last.bytes == far_place.offset &&
        last.pieces.size() < kMaxPieces) {
      last.bytes += range.bytes;
      last.pieces.push_back(piece);
      return;
    }
  }
  Move move;
  move.kind = kind;
  move.far = far.far;
  move.offset = far_place.offset;
  move.bytes = range.bytes;
  move.pieces.push_back(piece);
  open.moves.push_back(std::move(move));
}

std::uint32_t Engine::FreePlace() {
  for (std::size_t place = 0; place < open_.size(); ++place) {
    if (!open_[place]->used) return static_cast<std::uint32_t>(place);
  }
  open_.push_back(std::make_unique<Open>());
  return static_cast<std::uint32_t>(open_.size() - 1);
}

void Engine::Hold(Open& open, RegionId id) {
  if (std::ranges::find(open.regions, id) != open.regions.end()) return;
  open.regions.push_back(id);
  ++regions_[id.index].batches;
}

void Engine::Release(RegionId id) {
  Region& region = regions_[id.index];
  ORBITKV_CHECK(region.batches > 0);
  if (--region.batches == 0 && region.closing) region.used = false;
}

Status Engine::Submit(const Batch& batch, std::uint64_t now_ns) {
  const bool syncs = batch.sync.generation != 0;
  if (batch.ranges.empty() && !syncs) return Fail(Code::kInvalid, "a batch of nothing");
  if (syncs && !Usable(batch.sync)) return Fail(Code::kStale, "a region is gone", batch.sync.index);
  if (syncs && !regions_[batch.sync.index].file) return Fail(Code::kUnsupported, "only a file is synced");
  if (batch.ranges.size() >= kMaxOperations) return Fail(Code::kInvalid, "a batch has too many ranges");
  for (const Range& range : batch.ranges) ORBITKV_TRY(Check(range));
  if (open_batches_ >= kMaxBatches) return Fail(Code::kBusy, "too many batches are under way", open_batches_);
  if (batch.deadline_ns <= now_ns) return Fail(Code::kTimedOut, "its deadline has passed");

  const std::uint32_t place = FreePlace();
  Open& open = *open_[place];
  const std::uint32_t generation = open.generation + 1;
  open = Open{};
  open.used = true;
  open.generation = generation;
  open.id = batch.id;
  open.deadline_ns = batch.deadline_ns;
  open.syncs = syncs;
  for (const Range& range : batch.ranges) {
    Append(open, range);
    Hold(open, range.from.region);
    Hold(open, range.to.region);
  }
  if (syncs) {
    Hold(open, batch.sync);
    Move move;
    move.kind = OperationKind::kSync;
    move.far = regions_[batch.sync.index].far;
    open.moves.push_back(std::move(move));
  }
  open.left = open.moves.size();
  ++open_batches_;
  // A sync begins when all others have ended.
  const std::size_t first = open.moves.size() - (syncs ? 1 : 0);
  for (std::size_t move = 0; move < first; ++move) queue_.push_back(Token(generation, place, move));
  if (first == 0) queue_.push_back(Token(generation, place, 0));
  Pump();
  return {};
}

// Moves that have not begun end here; those that have are waited for.
void Engine::FailBatch(Open& open, const Error& error) {
  if (open.status) open.status = std::unexpected(error);
  for (Move& move : open.moves) {
    if (!move.queued) continue;
    move.queued = false;
    --open.left;
  }
}

void Engine::Ended(const Outcome& outcome) {
  const std::uint64_t place = PlaceOf(outcome.token);
  const std::uint64_t number = MoveOf(outcome.token);
  if (place >= open_.size() || !open_[place]->used ||
      open_[place]->generation != static_cast<std::uint32_t>(outcome.token >> kGenerationShift) ||
      number >= open_[place]->moves.size()) {
    ++late_outcomes_;
    return;
  }
  Open& open = *open_[place];
  Move& move = open.moves[number];
  if (!move.running) {
    ++late_outcomes_;
    return;
  }
  move.running = false;
  --open.left;
  if (outcome.sys_errno != 0) {
    FailBatch(open, FromErrno(outcome.sys_errno));
  } else if (outcome.bytes != move.bytes) {
    FailBatch(open, Error{Code::kIo, 0, "fewer bytes were moved than asked for", outcome.bytes, move.bytes});
  }
  if (open.left == 1 && open.syncs && open.moves.back().queued) {
    queue_.push_back(Token(open.generation, place, open.moves.size() - 1));
  }
  if (open.left == 0) ended_.push_back(static_cast<std::uint32_t>(place));
}

void Engine::Pump() {
  bool started = false;
  while (!queue_.empty()) {
    const std::uint64_t token = queue_.front();
    Open& open = *open_[PlaceOf(token)];
    const bool current = open.used && open.generation == static_cast<std::uint32_t>(token >> kGenerationShift);
    if (current && open.moves[MoveOf(token)].queued) {
      Move& move = open.moves[MoveOf(token)];
      if (!port_.Start({token, move.kind, move.far, move.offset, move.pieces})) break;
      move.queued = false;
      move.running = true;
      started = true;
    }
    queue_.pop_front();
  }
  if (started) port_.Flush();
}

void Engine::Finish(std::vector<Completion>& out) {
  for (const std::uint32_t place : ended_) {
    Open& open = *open_[place];
    if (!open.used) continue;
    out.push_back({open.id, open.status, true});
    for (const RegionId id : open.regions) Release(id);
    open.used = false;
    open.regions.clear();
    --open_batches_;
  }
  ended_.clear();
}

void Engine::Poll(std::uint64_t now_ns, std::vector<Completion>& out) {
  port_.Flush();
  outcomes_.clear();
  port_.Reap(outcomes_);
  for (const Outcome& outcome : outcomes_) Ended(outcome);
  for (std::size_t place = 0; place < open_.size(); ++place) {
    Open& open = *open_[place];
    if (!open.used || open.left == 0) continue;
    if (open.deadline_ns <= now_ns) FailBatch(open, Error{Code::kTimedOut, 0, "a transfer took too long", 0, 0});
    if (open.left == 0) {
      ended_.push_back(static_cast<std::uint32_t>(place));
    } else if (!open.status && !open.told) {
      open.told = true;
      out.push_back({open.id, open.status, false});
    }
  }
  Finish(out);
  Pump();
}

std::uint64_t Engine::next_deadline_ns() const {
  std::uint64_t next = ~0ULL;
  for (const auto& open : open_) {
    if (open->used && open->status) next = std::min(next, open->deadline_ns);
  }
  return next;
}

}  // namespace orbitkv::orbite
