#include "orbitkv/wire/commands.h"

#include "orbitkv/wire/payload.h"

namespace orbitkv::wire {

Result<ReserveView> DecodeReserve(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  const auto header = reader.Header<ReserveHeader>();
  if (!header || header->block_count == 0 || header->block_count > kMaxBlocksPerReserve || header->slot_bytes == 0) {
    return Fail(Code::kInvalid, "reserve header out of range");
  }
  const auto hashes = reader.Array<state::BlockHash>(header->block_count);
  if (!hashes || !reader.AtEnd()) return Fail(Code::kInvalid, "reserve length differs from its block count");
  return ReserveView{*header, *hashes};
}

Result<CommitView> DecodeCommit(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  const auto header = reader.Header<CommitHeader>();
  if (!header || header->count > kMaxBlocksPerReserve) return Fail(Code::kInvalid, "commit header out of range");
  const auto entries = reader.Array<CommitEntry>(header->count);
  if (!entries || !reader.AtEnd()) return Fail(Code::kInvalid, "commit length differs from its count");
  return CommitView{*entries};
}

Result<BeginView> DecodeBegin(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  const auto header = reader.Header<BeginHeader>();
  if (!header || header->boundary_blocks == 0 || header->rank_count == 0 || header->rank_count > kMaxRanks) {
    return Fail(Code::kInvalid, "restore begin header out of range");
  }
  const auto ranks = reader.Array<std::uint32_t>(header->rank_count);
  if (!ranks || !reader.AtEnd()) return Fail(Code::kInvalid, "restore begin length differs from its rank count");
  return BeginView{*header, *ranks};
}

namespace {

template <typename Entry>
Result<std::span<const Entry>> DecodeEndOf(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  const auto header = reader.Header<EndHeader>();
  if (!header) return Fail(Code::kInvalid, "restore end header is short");
  const auto entries = reader.Array<Entry>(header->index_count);
  if (!entries || !reader.AtEnd()) return Fail(Code::kInvalid, "restore end length differs from its count");
  return *entries;
}

}  // namespace

Result<EndView> DecodeEnd(std::span<const std::byte> payload) {
  ORBITKV_ASSIGN_OR_RETURN(const auto mismatches, DecodeEndOf<EndEntry>(payload));
  return EndView{mismatches};
}

Result<EndViewV1> DecodeEndV1(std::span<const std::byte> payload) {
  ORBITKV_ASSIGN_OR_RETURN(const auto indices, DecodeEndOf<std::uint32_t>(payload));
  return EndViewV1{indices};
}

Result<std::span<const ReserveEntry>> DecodeReserveAnswer(std::span<const std::byte> payload) {
  return DecodeArray<ReserveEntry>(payload, "reserve answer is no whole number of entries");
}

Result<std::span<const PlanEntry>> DecodePlan(std::span<const std::byte> payload) {
  return DecodeArray<PlanEntry>(payload, "restore plan is no whole number of entries");
}

Result<std::span<const PlanEntryV1>> DecodePlanV1(std::span<const std::byte> payload) {
  return DecodeArray<PlanEntryV1>(payload, "restore plan is no whole number of entries");
}

Result<std::span<const std::uint32_t>> DecodeCommitAnswer(std::span<const std::byte> payload) {
  return DecodeArray<std::uint32_t>(payload, "commit answer is no whole number of outcomes");
}

std::vector<std::byte> EncodeReserve(ReserveHeader header, std::span<const state::BlockHash> hashes) {
  header.block_count = static_cast<std::uint32_t>(hashes.size());
  header.reserved = 0;
  return EncodePayload(header, hashes);
}

std::vector<std::byte> EncodeCommit(std::span<const CommitEntry> entries) {
  return EncodePayload(CommitHeader{static_cast<std::uint32_t>(entries.size()), 0}, entries);
}

std::vector<std::byte> EncodeBegin(std::uint32_t boundary_blocks, std::span<const std::uint32_t> ranks) {
  return EncodePayload(BeginHeader{boundary_blocks, static_cast<std::uint32_t>(ranks.size())}, ranks);
}

std::vector<std::byte> EncodeEnd(std::span<const EndEntry> mismatches) {
  return EncodePayload(EndHeader{static_cast<std::uint32_t>(mismatches.size()), 0}, mismatches);
}

std::vector<std::byte> EncodeEndV1(std::span<const std::uint32_t> indices) {
  return EncodePayload(EndHeader{static_cast<std::uint32_t>(indices.size()), 0}, indices);
}

std::vector<std::byte> EncodeEndFor(std::uint16_t abi, std::span<const EndEntry> mismatches) {
  if (abi > 1) return EncodeEnd(mismatches);
  std::vector<std::uint32_t> indices;
  for (const EndEntry& one : mismatches) indices.push_back(one.index);
  return EncodeEndV1(indices);
}

}  // namespace orbitkv::wire
