#include "orbitkv/wire/query.h"

#include "orbitkv/wire/payload.h"

namespace orbitkv::wire {
namespace {

Status CheckViews(const QueryHeader& header, std::span<const HashView> views) {
  if ((header.mode == QueryMode::kSelected) == views.empty()) {
    return Fail(Code::kInvalid, "views belong to a selected read", views.size());
  }
  std::uint64_t blocks = 0;
  for (const HashView& view : views) {
    if (view.count == 0 || view.first > header.hash_count || view.count > header.hash_count - view.first ||
        view.reserved != 0) {
      return Fail(Code::kInvalid, "a view lies outside the hashes", view.first, view.count);
    }
    blocks += view.count;
  }
  if (blocks > kMaxHashesPerQuery) return Fail(Code::kInvalid, "the views name too many blocks", blocks);
  return {};
}

}  // namespace

Result<QueryView> DecodeQuery(std::span<const std::byte> payload, std::uint16_t abi) {
  PayloadReader reader(payload);
  const auto header = reader.Header<QueryHeader>();
  const std::uint16_t known = abi < 3 ? 0 : kWaitIsComputeTime | kTellTiers;
  if (!header || header->hash_count > kMaxHashesPerQuery || header->view_count > kMaxViewsPerQuery ||
      header->mode > QueryMode::kPrepare || (header->flags & ~known) != 0) {
    return Fail(Code::kInvalid, "query header out of range");
  }
  if ((header->flags & kTellTiers) != 0 && header->mode != QueryMode::kDiscovery) {
    return Fail(Code::kInvalid, "a discovery alone tells where blocks are");
  }
  const bool named = header->consumer_key_hi != 0 || header->consumer_key_lo != 0;
  if (named != (header->mode == QueryMode::kPrepare)) {
    return Fail(Code::kInvalid, "a consumer belongs to a preparation");
  }
  const auto views = reader.Array<HashView>(header->view_count);
  if (!views) return Fail(Code::kInvalid, "query length differs from its view count");
  const auto hashes = reader.Array<state::BlockHash>(header->hash_count);
  if (!hashes || !reader.AtEnd()) return Fail(Code::kInvalid, "query length differs from its hash count");
  ORBITKV_TRY(CheckViews(*header, *views));
  const bool computes = (header->flags & kWaitIsComputeTime) != 0 && header->hash_count > 0;
  return QueryView{*header, *views, *hashes, computes ? header->wait_ns / header->hash_count : 0};
}

Result<QueryView> DecodeQueryV1(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  const auto header = reader.Header<QueryHeaderV1>();
  if (!header || header->hash_count > kMaxHashesPerQuery) return Fail(Code::kInvalid, "query header out of range");
  const auto hashes = reader.Array<state::BlockHash>(header->hash_count);
  if (!hashes || !reader.AtEnd()) return Fail(Code::kInvalid, "query length differs from its hash count");
  QueryView view;
  view.header.request_key_hi = header->request_key_hi;
  view.header.request_key_lo = header->request_key_lo;
  view.header.attempt = header->attempt;
  view.header.group = header->group;
  view.header.prefix_blocks = header->prefix_blocks;
  view.header.hash_count = header->hash_count;
  view.hashes = *hashes;
  return view;
}

Result<std::span<const PollRequest>> DecodePoll(std::span<const std::byte> payload) {
  ORBITKV_ASSIGN_OR_RETURN(const auto requests,
                           DecodeArray<PollRequest>(payload, "poll is no whole number of operations"));
  if (requests.empty() || requests.size() > kMaxPolled) {
    return Fail(Code::kInvalid, "too few or too many operations in one poll", requests.size(), kMaxPolled);
  }
  return requests;
}

Result<PollView> DecodePollAnswer(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  const auto header = reader.Header<PollHeader>();
  if (!header || header->entry_count > kMaxPolled) return Fail(Code::kInvalid, "poll answer out of range");
  const auto entries = reader.Array<PollEntry>(header->entry_count);
  if (!entries) return Fail(Code::kInvalid, "poll answer length differs from its count");
  const auto boundaries = reader.Array<std::uint32_t>(header->boundary_count);
  if (!boundaries || !reader.AtEnd()) return Fail(Code::kInvalid, "poll answer length differs from its count");
  std::uint64_t named = 0;
  for (const PollEntry& entry : *entries) named += entry.boundary_count;
  if (named != boundaries->size()) return Fail(Code::kInvalid, "poll answer with boundaries of nobody", named);
  return PollView{*entries, *boundaries};
}

Result<DiscoveryView> DecodeDiscovery(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  const auto header = reader.Header<DiscoveryHeader>();
  if (!header || header->block_count > kMaxHashesPerQuery) return Fail(Code::kInvalid, "discovery out of range");
  const auto boundaries = reader.Array<std::uint32_t>(header->boundary_count);
  if (!boundaries) return Fail(Code::kInvalid, "discovery length differs from its counts");
  const auto tiers = reader.Array<Tier>(header->block_count);
  if (!tiers || !reader.AtEnd()) return Fail(Code::kInvalid, "discovery length differs from its counts");
  for (const Tier tier : *tiers) {
    if (tier > Tier::kBehind) return Fail(Code::kInvalid, "a block is nowhere that is known");
  }
  return DiscoveryView{*boundaries, *tiers};
}

Result<ClaimRequest> DecodeClaim(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  const auto claim = reader.Header<ClaimRequest>();
  if (!claim || !reader.AtEnd() || claim->reserved != 0) return Fail(Code::kInvalid, "claim out of range");
  if (claim->consumer_key_hi == 0 && claim->consumer_key_lo == 0) {
    return Fail(Code::kInvalid, "a claim names its consumer");
  }
  return *claim;
}

Result<std::span<const std::uint32_t>> DecodeBoundaries(std::span<const std::byte> payload) {
  return DecodeArray<std::uint32_t>(payload, "query answer is no whole number of boundaries");
}

std::vector<std::byte> EncodeQuery(QueryHeader header, std::span<const state::BlockHash> hashes,
                                   std::span<const HashView> views) {
  header.hash_count = static_cast<std::uint32_t>(hashes.size());
  header.view_count = static_cast<std::uint32_t>(views.size());
  return EncodePayload(header, views, hashes);
}

std::vector<std::byte> EncodeQueryV1(QueryHeaderV1 header, std::span<const state::BlockHash> hashes) {
  header.hash_count = static_cast<std::uint32_t>(hashes.size());
  return EncodePayload(header, hashes);
}

std::vector<std::byte> EncodePoll(std::span<const PollRequest> requests) {
  const auto bytes = std::as_bytes(requests);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> EncodePollAnswer(std::span<const PollEntry> entries, std::span<const std::uint32_t> boundaries) {
  const PollHeader header{static_cast<std::uint32_t>(entries.size()), static_cast<std::uint32_t>(boundaries.size())};
  return EncodePayload(header, entries, boundaries);
}

std::vector<std::byte> EncodeDiscovery(std::span<const std::uint32_t> boundaries, std::span<const Tier> tiers) {
  const DiscoveryHeader header{static_cast<std::uint32_t>(boundaries.size()), static_cast<std::uint32_t>(tiers.size())};
  return EncodePayload(header, boundaries, tiers);
}

std::vector<std::byte> EncodeClaim(const ClaimRequest& claim) { return EncodePayload(claim); }

}  // namespace orbitkv::wire
