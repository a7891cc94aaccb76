#include "orbitkv/testing/virtual_disk.h"

#include <cerrno>
#include <cstring>

namespace orbitkv::testing {

void VirtualDisk::WriteAt(std::uint64_t offset, std::span<const std::byte> from) {
  for (std::uint64_t at = 0; at < from.size(); at += kSectorBytes) {
    const std::span<const std::byte> sector = from.subspan(at, kSectorBytes);
    if (std::memcmp(now_.data() + offset + at, sector.data(), kSectorBytes) == 0) continue;
    std::memcpy(now_.data() + offset + at, sector.data(), kSectorBytes);
    unsynced_.push_back({offset + at, {sector.begin(), sector.end()}});
  }
}

void VirtualDisk::ReadAt(std::uint64_t offset, std::span<std::byte> into) const {
  std::memcpy(into.data(), now_.data() + offset, into.size());
}

void VirtualDisk::Settle() {
  for (const Write& write : unsynced_) std::memcpy(kept_.data() + write.offset, write.bytes.data(), kSectorBytes);
  unsynced_.clear();
  kept_ = now_;
}

void VirtualDisk::PowerLoss(const std::function<bool(std::size_t)>& kept) {
  for (std::size_t i = 0; i < unsynced_.size(); ++i) {
    if (kept(i)) std::memcpy(kept_.data() + unsynced_[i].offset, unsynced_[i].bytes.data(), kSectorBytes);
  }
  unsynced_.clear();
  now_ = kept_;
}

bool VirtualPort::Start(const orbite::Operation& operation) {
  if (queue_.size() >= capacity_) return false;
  queue_.push_back(operation);
  return true;
}

orbite::Outcome VirtualPort::Do(const orbite::Operation& operation) {
  if (operation.kind == orbite::OperationKind::kSync) {
    disk_.Sync();
    return {operation.token, 0, 0};
  }
  std::uint64_t offset = operation.offset;
  for (const os::IoPiece& piece : operation.pieces) {
    if (offset > disk_.size() || piece.bytes > disk_.size() - offset || offset % VirtualDisk::kSectorBytes != 0 ||
        piece.bytes % VirtualDisk::kSectorBytes != 0) {
      return {operation.token, EINVAL, 0};
    }
    const std::span<std::byte> memory(piece.data, piece.bytes);
    if (operation.kind == orbite::OperationKind::kRead) {
      disk_.ReadAt(offset, memory);
    } else {
      disk_.WriteAt(offset, memory);
    }
    offset += piece.bytes;
  }
  return {operation.token, 0, offset - operation.offset};
}

void VirtualPort::Reap(std::vector<orbite::Outcome>& out) {
  while (!queue_.empty() && allowed_ > 0) {
    if (allowed_ != ~0ULL) --allowed_;
    out.push_back(Do(queue_.front()));
    queue_.pop_front();
    ++ended_;
  }
}

}  // namespace orbitkv::testing
