#include "orbitkv/wire/commands.h"

#include <cstring>
#include <optional>
#include <type_traits>

namespace orbitkv::wire {
namespace {

// Reads one header and then arrays off the front of a payload; every step checks that the bytes are there.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> rest) : rest_(rest) {}

  template <typename T>
  std::optional<T> Header() {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  template <typename T>
  std::optional<std::span<const T>> Array(std::size_t count) {
    if (count > rest_.size() / sizeof(T)) return std::nullopt;
    if (reinterpret_cast<std::uintptr_t>(rest_.data()) % alignof(T) != 0) return std::nullopt;
    const std::span<const T> values(reinterpret_cast<const T*>(rest_.data()), count);
    rest_ = rest_.subspan(count * sizeof(T));
    return values;
  }
  bool AtEnd() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

template <typename Header, typename Entry>
std::vector<std::byte> Encode(const Header& header, std::span<const Entry> entries) {
  std::vector<std::byte> bytes(sizeof(Header) + entries.size_bytes());
  std::memcpy(bytes.data(), &header, sizeof(Header));
  if (!entries.empty()) std::memcpy(bytes.data() + sizeof(Header), entries.data(), entries.size_bytes());
  return bytes;
}

template <typename Entry>
Result<std::span<const Entry>> DecodeArray(std::span<const std::byte> payload, const char* text) {
  if (payload.size() % sizeof(Entry) != 0) return Fail(Code::kInvalid, text, payload.size());
  Reader reader(payload);
  const auto entries = reader.Array<Entry>(payload.size() / sizeof(Entry));
  if (!entries) return Fail(Code::kInvalid, text, payload.size());
  return *entries;
}

}  // namespace

Result<QueryView> DecodeQuery(std::span<const std::byte> payload) {
  Reader reader(payload);
  const auto header = reader.Header<QueryHeader>();
  if (!header || header->hash_count > kMaxHashesPerQuery) return Fail(Code::kInvalid, "query header out of range");
  const auto hashes = reader.Array<state::BlockHash>(header->hash_count);
  if (!hashes || !reader.AtEnd()) return Fail(Code::kInvalid, "query length differs from its hash count");
  return QueryView{*header, *hashes};
}

Result<ReserveView> DecodeReserve(std::span<const std::byte> payload) {
  Reader reader(payload);
  const auto header = reader.Header<ReserveHeader>();
  if (!header || header->block_count == 0 || header->block_count > kMaxBlocksPerReserve || header->slot_bytes == 0) {
    return Fail(Code::kInvalid, "reserve header out of range");
  }
  const auto hashes = reader.Array<state::BlockHash>(header->block_count);
  if (!hashes || !reader.AtEnd()) return Fail(Code::kInvalid, "reserve length differs from its block count");
  return ReserveView{*header, *hashes};
}

Result<CommitView> DecodeCommit(std::span<const std::byte> payload) {
  Reader reader(payload);
  const auto header = reader.Header<CommitHeader>();
  if (!header || header->count > kMaxBlocksPerReserve) return Fail(Code::kInvalid, "commit header out of range");
  const auto entries = reader.Array<CommitEntry>(header->count);
  if (!entries || !reader.AtEnd()) return Fail(Code::kInvalid, "commit length differs from its count");
  return CommitView{*entries};
}

Result<BeginView> DecodeBegin(std::span<const std::byte> payload) {
  Reader reader(payload);
  const auto header = reader.Header<BeginHeader>();
  if (!header || header->boundary_blocks == 0 || header->rank_count == 0 || header->rank_count > kMaxRanks) {
    return Fail(Code::kInvalid, "restore begin header out of range");
  }
  const auto ranks = reader.Array<std::uint32_t>(header->rank_count);
  if (!ranks || !reader.AtEnd()) return Fail(Code::kInvalid, "restore begin length differs from its rank count");
  return BeginView{*header, *ranks};
}

Result<EndView> DecodeEnd(std::span<const std::byte> payload) {
  Reader reader(payload);
  const auto header = reader.Header<EndHeader>();
  if (!header) return Fail(Code::kInvalid, "restore end header is short");
  const auto indices = reader.Array<std::uint32_t>(header->index_count);
  if (!indices || !reader.AtEnd()) return Fail(Code::kInvalid, "restore end length differs from its count");
  return EndView{*indices};
}

Result<std::span<const ReserveEntry>> DecodeReserveAnswer(std::span<const std::byte> payload) {
  return DecodeArray<ReserveEntry>(payload, "reserve answer is no whole number of entries");
}

Result<std::span<const PlanEntry>> DecodePlan(std::span<const std::byte> payload) {
  return DecodeArray<PlanEntry>(payload, "restore plan is no whole number of entries");
}

Result<std::span<const std::uint32_t>> DecodeCommitAnswer(std::span<const std::byte> payload) {
  return DecodeArray<std::uint32_t>(payload, "commit answer is no whole number of outcomes");
}

std::vector<std::byte> EncodeQuery(QueryHeader header, std::span<const state::BlockHash> hashes) {
  header.hash_count = static_cast<std::uint32_t>(hashes.size());
  return Encode(header, hashes);
}

std::vector<std::byte> EncodeReserve(ReserveHeader header, std::span<const state::BlockHash> hashes) {
  header.block_count = static_cast<std::uint32_t>(hashes.size());
  header.reserved = 0;
  return Encode(header, hashes);
}

std::vector<std::byte> EncodeCommit(std::span<const CommitEntry> entries) {
  return Encode(CommitHeader{static_cast<std::uint32_t>(entries.size()), 0}, entries);
}

std::vector<std::byte> EncodeBegin(std::uint32_t boundary_blocks, std::span<const std::uint32_t> ranks) {
  return Encode(BeginHeader{boundary_blocks, static_cast<std::uint32_t>(ranks.size())}, ranks);
}

std::vector<std::byte> EncodeEnd(std::span<const std::uint32_t> indices) {
  return Encode(EndHeader{static_cast<std::uint32_t>(indices.size()), 0}, indices);
}

}  // namespace orbitkv::wire
