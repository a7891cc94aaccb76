#include "orbitkv/testing/faulty_port.h"

#include <cerrno>
#include <optional>

namespace orbitkv::testing {
namespace {

std::optional<int> ErrnoOf(Fault fault) {
  switch (fault) {
    case Fault::kIoError: return EIO;
    case Fault::kNoSpace: return ENOSPC;
    case Fault::kGone: return ENODEV;
    case Fault::kReadOnly: return EROFS;
    default: return std::nullopt;
  }
}

std::uint64_t BytesOf(std::span<const os::IoPiece> pieces) {
  std::uint64_t bytes = 0;
  for (const os::IoPiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

constexpr std::uint64_t kSector = 512;

}  // namespace

void FaultyPort::ReleaseHeld(Fault fault) {
  std::list<orbite::Operation> held;
  held.swap(held_);
  for (const orbite::Operation& operation : held) {
    if (!StartWith(operation, fault)) held_.push_back(operation);
  }
  inner_.Flush();
}

void FaultyPort::RepeatLast() { ready_.push_back(last_); }

bool FaultyPort::Start(const orbite::Operation& operation) {
  return StartWith(operation, choose_ ? choose_(operation) : Fault::kNone);
}

bool FaultyPort::StartWith(const orbite::Operation& operation, Fault fault) {
  if (fault == Fault::kHold) {
    held_.push_back(operation);
    return true;
  }
  if (const auto sys_errno = ErrnoOf(fault)) {
    ready_.push_back({operation.token, *sys_errno, 0});
    return true;
  }
  if (fault == Fault::kNone || operation.kind == orbite::OperationKind::kSync) return inner_.Start(operation);
  Changed changed{fault, {}, BytesOf(operation.pieces)};
  if (fault == Fault::kFlip) {
    changed.pieces.assign(operation.pieces.begin(), operation.pieces.end());
  } else {
    std::uint64_t left = changed.claimed_bytes / 2 / kSector * kSector;
    for (const os::IoPiece& piece : operation.pieces) {
      if (left == 0) break;
      changed.pieces.push_back({piece.data, std::min<std::uint64_t>(piece.bytes, left)});
      left -= changed.pieces.back().bytes;
    }
    if (changed.pieces.empty()) {
      ready_.push_back({operation.token, 0, fault == Fault::kTorn ? changed.claimed_bytes : 0});
      return true;
    }
  }
  Changed& kept = changed_[operation.token] = std::move(changed);
  orbite::Operation altered = operation;
  altered.pieces = kept.pieces;
  if (inner_.Start(altered)) return true;
  changed_.erase(operation.token);
  return false;
}

void FaultyPort::Reap(std::vector<orbite::Outcome>& out) {
  const std::size_t first = out.size();
  out.insert(out.end(), ready_.begin(), ready_.end());
  ready_.clear();
  inner_.Reap(out);
  for (std::size_t i = first; i < out.size(); ++i) {
    const auto found = changed_.find(out[i].token);
    if (found == changed_.end()) continue;
    const Changed& changed = found->second;
    if (changed.fault == Fault::kTorn) out[i].bytes = changed.claimed_bytes;
    if (changed.fault == Fault::kFlip) changed.pieces.back().data[changed.pieces.back().bytes / 2] ^= std::byte{4};
    changed_.erase(found);
  }
  if (out.size() > first) last_ = out.back();
}

}  // namespace orbitkv::testing
