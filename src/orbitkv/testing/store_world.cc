#include "orbitkv/testing/store_world.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/base/prng.h"
#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/store/layout.h"

namespace orbitkv::testing {
namespace {

constexpr std::uint64_t kUnixS = 1'700'000'000;

}  // namespace

StoreWorld::StoreWorld(const Shape& shape)
    : shape_(shape),
      payload_bytes_(static_cast<std::uint32_t>(copy::SlotBytes(shape.page_count, shape.page_bytes))),
      slot_bytes_(store::AlignUp(payload_bytes_, store::kSectorBytes)),
      disk_(wire::kStoreBlockBytes + shape.segments * shape.segment_bytes),
      pool_(os::Mapping::Anonymous(kSlots * slot_bytes_).value()) {
  config_.file_bytes = disk_.size();
  config_.segment_bytes = shape.segment_bytes;
  config_.align = shape.align;
  config_.max_records = 4096;
  config_.uuid.fill(std::byte{0x5a});
  config_.seed = 17;
  config_.log.write_bytes = shape.write_bytes;
  config_.log.writes = 4;
  config_.log.reads = 8;
  config_.log.reinsert_bytes = 64 * 1024;
}

Status StoreWorld::Open() {
  Close();
  port_ = std::make_unique<VirtualPort>(disk_);
  faulty_ = std::make_unique<FaultyPort>(*port_);
  ORBITKV_ASSIGN_OR_RETURN(store_, store::Store::Open(*faulty_, config_, [this] { return now_ns_; }, kUnixS));
  store_->log().AttachPool(pool_.bytes());
  config_.skip += 1000;
  return {};
}

void StoreWorld::Close() {
  if (store_ == nullptr) return;
  faulty_->set_fault({});
  faulty_->ReleaseHeld();
  Run();
  store_.reset();
  ends_.clear();
}

state::StateKey StoreWorld::KeyOf(std::uint64_t block) const {
  state::StateKey key;
  Prng prng(block * 2 + 1);
  for (std::byte& byte : key.hash.bytes) byte = static_cast<std::byte>(prng.Next());
  key.namespace_digest.fill(std::byte{0x33});
  key.group = static_cast<std::uint32_t>(block % 2);
  key.shard = 1;
  return key;
}

std::vector<std::byte> StoreWorld::BytesOf(std::uint64_t block, std::uint64_t version) const {
  std::vector<std::byte> bytes(payload_bytes_);
  Prng prng(block * 2 + 2 + (version << 32U));
  for (std::size_t at = 0; at < shape_.page_count * shape_.page_bytes; ++at) {
    bytes[at] = static_cast<std::byte>(prng.Next());
  }
  std::vector<std::uint64_t> hashes(shape_.page_count);
  for (std::uint32_t page = 0; page < shape_.page_count; ++page) {
    hashes[page] = copy::HashOnly(bytes.data() + page * shape_.page_bytes, shape_.page_bytes);
  }
  copy::WriteList(bytes.data(), shape_.page_bytes, hashes);
  return bytes;
}

store::Facts StoreWorld::FactsOf(std::uint64_t block, std::uint64_t version) const {
  store::Facts facts;
  if (block % 4 != 0) facts.parent = KeyOf(block - 1).hash;
  facts.depth = static_cast<std::uint32_t>(block % 4);
  facts.payload_bytes = payload_bytes_;
  const std::vector<std::byte> bytes = BytesOf(block, version);
  std::vector<std::uint64_t> hashes(shape_.page_count);
  copy::ReadList(bytes.data(), shape_.page_bytes, hashes);
  facts.checksum = copy::SlotChecksum(KeyOf(block), copy::PayloadBytes(shape_.page_count, shape_.page_bytes), hashes);
  return facts;
}

std::uint64_t StoreWorld::record_bytes() const { return store::RecordBytes(shape_.align, payload_bytes_); }

std::span<std::byte> StoreWorld::Slot(std::uint32_t slot) {
  return pool_.bytes().subspan(slot * slot_bytes_, slot_bytes_);
}

void StoreWorld::BeginSave(std::uint64_t block, std::uint32_t slot, std::uint64_t version) {
  const std::vector<std::byte> bytes = BytesOf(block, version);
  std::memcpy(Slot(slot).data(), bytes.data(), bytes.size());
  store_->log().Save(
      {next_id_++, KeyOf(block), FactsOf(block, version), shape_.page_count, shape_.page_bytes, slot * slot_bytes_});
}

void StoreWorld::BeginLoad(std::uint64_t block, std::uint32_t slot) {
  std::ranges::fill(Slot(slot), std::byte{0xee});
  store_->log().Load({next_id_++, KeyOf(block), payload_bytes_, slot * slot_bytes_});
}

void StoreWorld::Step() {
  store_->Step(now_ns_, kUnixS);
  const auto ends = store_->log().TakeEnds();
  ends_.insert(ends_.end(), ends.begin(), ends.end());
}

void StoreWorld::Run() {
  for (int steps = 0; steps < 100'000; ++steps) {
    Step();
    if (store_->log().idle()) return;
    if (faulty_->held() > 0 && steps > 50) return;
    if (steps % 8 == 7) store_->log().Flush(now_ns_);
  }
}

std::optional<store::LogEnd> StoreWorld::TakeEnd(std::uint64_t id) {
  const auto found = std::ranges::find(ends_, id, &store::LogEnd::id);
  if (found == ends_.end()) return std::nullopt;
  const store::LogEnd end = *found;
  ends_.erase(found);
  return end;
}

store::LogEnd::Result StoreWorld::Save(std::uint64_t block) {
  const std::uint64_t id = next_id_;
  BeginSave(block, 0);
  Run();
  const auto end = TakeEnd(id);
  return end ? end->result : store::LogEnd::Result::kFailed;
}

StoreWorld::Loaded StoreWorld::Load(std::uint64_t block) {
  if (!Has(block)) return Loaded::kMissing;
  const std::uint64_t id = next_id_;
  BeginLoad(block, 1);
  Run();
  const auto end = TakeEnd(id);
  if (!end || end->result != store::LogEnd::Result::kOk) return Loaded::kFailed;
  const std::vector<std::byte> bytes = BytesOf(block);
  const bool right =
      std::memcmp(Slot(1).data(), bytes.data(), bytes.size()) == 0 && end->checksum == FactsOf(block).checksum;
  return right ? Loaded::kRight : Loaded::kWrongBytes;
}

}  // namespace orbitkv::testing
