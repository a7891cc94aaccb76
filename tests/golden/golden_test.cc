// Every layout of the wire, byte for byte, as the files beside this one have it. What a version once said it says for
// ever: a test that fails here means a new version, not a new file. With ORBITKV_WRITE_GOLDEN set, files that are
// missing are written; those that are there never change.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>

#include "orbitkv/manager/lifecycle.h"
#include "orbitkv/pool/session_lists.h"
#include "orbitkv/wire/commands.h"
#include "orbitkv/wire/descriptor.h"
#include "orbitkv/wire/frame.h"
#include "orbitkv/wire/lifecycle.pb.h"
#include "orbitkv/wire/namespace_table.h"
#include "orbitkv/wire/session_layout.h"
#include "orbitkv/wire/tables.h"

namespace orbitkv::wire {
namespace {

using Bytes = std::vector<std::byte>;

std::string Hex(const Bytes& bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    text += fmt::format("{}{:02x}", i % 32 == 0 ? "\n" : i % 4 == 0 ? " " : "", static_cast<unsigned>(bytes[i]));
  }
  return text;
}

template <typename T>
Bytes BytesOf(const T& value) {
  Bytes bytes(sizeof value);
  std::memcpy(bytes.data(), static_cast<const void*>(&value), sizeof value);
  return bytes;
}

template <typename T>
Bytes BytesOfAll(std::initializer_list<T> values) {
  const auto bytes = std::as_bytes(std::span(values.begin(), values.size()));
  return {bytes.begin(), bytes.end()};
}

Bytes Serialized(const google::protobuf::MessageLite& message) {
  Bytes bytes(message.ByteSizeLong());
  message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

// The file's bytes, after comparing them with what is encoded now.
Bytes Same(const std::string& name, const Bytes& encoded) {
  const std::filesystem::path path = std::filesystem::path(ORBITKV_GOLDEN_FOLDER) / (name + ".bin");
  if (!std::filesystem::exists(path) && std::getenv("ORBITKV_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(encoded.data()), static_cast<std::streamsize>(encoded.size()));
  }
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path << " is missing";
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  Bytes golden(begin, begin + text.size());
  EXPECT_TRUE(golden == encoded) << name << Hex(golden) << "\nis what it was, now it is" << Hex(encoded);
  return golden;
}

state::BlockHash HashOf(std::uint8_t first) {
  state::BlockHash hash{};
  for (std::size_t i = 0; i < hash.bytes.size(); ++i) {
    hash.bytes[i] = static_cast<decltype(hash.bytes)::value_type>(first + i);
  }
  return hash;
}

const state::BlockHash kHashes[] = {HashOf(0x10), HashOf(0x60)};
const Incarnation kIncarnation{0x0102030405060708ULL, 0x1112131415161718ULL};

Descriptor Request(std::uint16_t abi) {
  return {.abi = abi,
          .op = static_cast<std::uint16_t>(Command::kQuerySubmit),
          .flags = kLastChunk | 3U << 16U,
          .generation = 0x0a0b0c0d,
          .request_id = 0x1112131415161718ULL,
          .session_epoch = 0x2122232425262728ULL,
          .arena_offset = 65'536,
          .arena_length = 96,
          .deadline_ns = 0x3132333435363738ULL,
          .scalar0 = 0x4142434445464748ULL,
          .scalar1 = 0x5152535455565758ULL};
}

TEST(Golden, DescriptorsOfEveryVersion) {
  for (std::uint16_t abi = kAbiMin; abi <= kAbiMax; ++abi) {
    const DescriptorLimits limits{
        .abi = abi, .session_epoch = 0x2122232425262728ULL, .slot_bytes = 65'536, .arena_bytes = 1U << 20U};
    Descriptor descriptor;
    const Bytes request = Same(fmt::format("abi{}_request", abi), BytesOf(Request(abi)));
    ASSERT_EQ(request.size(), sizeof descriptor);
    std::memcpy(&descriptor, request.data(), sizeof descriptor);
    EXPECT_TRUE(DecodeRequest(descriptor, limits)) << abi;
    Descriptor answer = Request(abi);
    answer.op = static_cast<std::uint16_t>(AnswerStatus::kOk);
    answer.flags = kMoreAnswer;
    answer.generation += 1;
    const Bytes bytes = Same(fmt::format("abi{}_answer", abi), BytesOf(answer));
    std::memcpy(&descriptor, bytes.data(), sizeof descriptor);
    EXPECT_TRUE(DecodeAnswer(descriptor, limits)) << abi;
  }
}

TEST(Golden, SharedPages) {
  alignas(64) std::byte memory[sizeof(SessionHeader)] = {};
  auto* header = reinterpret_cast<SessionHeader*>(memory);
  header->magic = kSessionMagic;
  header->abi = 1;
  header->ring_entries = 64;
  header->slot_count = 16;
  header->slot_bytes = 65'536;
  header->session_epoch = 0x0102030405060708ULL;
  header->client_asleep = 1;
  header->request_head = 0x21222324;
  header->request_tail = 0x31323334;
  header->answer_head = 0x41424344;
  header->answer_tail = 0x51525354;
  // Version 1 ends with answer_tail; what follows is of later versions.
  constexpr std::size_t kVersion1 = 384;
  Same("abi1_session_header", Bytes(memory, memory + kVersion1));
  header->abi = 2;
  header->completions = 0x61626364;
  Same("abi2_session_header", Bytes(std::begin(memory), std::end(memory)));
  header->abi = 3;
  Same("abi3_session_header", Bytes(std::begin(memory), std::end(memory)));
  alignas(64) std::byte page_memory[sizeof(ManagerPage)] = {};
  auto* page = reinterpret_cast<ManagerPage*>(page_memory);
  page->magic = kManagerMagic;
  page->abi = 2;
  page->incarnation_hi = kIncarnation.hi;
  page->incarnation_lo = kIncarnation.lo;
  page->dispatcher_asleep = 1;
  Same("manager_page", Bytes(std::begin(page_memory), std::end(page_memory)));
  const SessionGeometry geometry;
  EXPECT_EQ(geometry.request_ring_offset(), 4096U);
  EXPECT_EQ(geometry.answer_ring_offset(), 8192U);
  EXPECT_EQ(geometry.arena_offset(), 12'288U);
  EXPECT_EQ(geometry.total_bytes(), 12'288U + (1U << 20U));
}

TEST(Golden, PayloadsOfLookUps) {
  const Bytes v1 = Same(
      "abi1_query",
      EncodeQueryV1({.request_key_hi = 1, .request_key_lo = 2, .attempt = 3, .group = 0, .prefix_blocks = 5}, kHashes));
  EXPECT_TRUE(DecodeQueryV1(v1));
  const HashView views[] = {{.group = 1, .first = 0, .count = 2}};
  const Bytes v2 = Same("abi2_query", EncodeQuery({.request_key_hi = 1,
                                                   .request_key_lo = 2,
                                                   .wait_ns = 5,
                                                   .attempt = 6,
                                                   .mode = QueryMode::kSelected,
                                                   .group = 1,
                                                   .prefix_blocks = 7},
                                                  kHashes, views));
  EXPECT_TRUE(DecodeQuery(v2, 2));
  const Bytes v3 = Same("abi3_query", EncodeQuery({.request_key_hi = 1,
                                                   .request_key_lo = 2,
                                                   .wait_ns = 5,
                                                   .attempt = 6,
                                                   .mode = QueryMode::kDiscovery,
                                                   .flags = kWaitIsComputeTime | kTellTiers,
                                                   .group = 1,
                                                   .prefix_blocks = 7},
                                                  kHashes));
  EXPECT_TRUE(DecodeQuery(v3, 3));
  EXPECT_FALSE(DecodeQuery(v3, 2)) << "version 2 knows no flags";
  const std::uint32_t ends[] = {3, 5};
  const Tier tiers[] = {Tier::kPool, Tier::kBehind, Tier::kAbsent};
  EXPECT_TRUE(DecodeDiscovery(Same("abi3_discovery", EncodeDiscovery(ends, tiers))));
  const PollRequest polls[] = {{.operation = 1, .revision = 2}, {.operation = 3, .revision = 4}};
  EXPECT_TRUE(DecodePoll(Same("abi2_poll", EncodePoll(polls))));
  const PollEntry entries[] = {{.operation = 1,
                                .lease = 2,
                                .revision = 3,
                                .state = static_cast<std::uint32_t>(TicketState::kReady),
                                .found = 5,
                                .reason = 0,
                                .boundary_count = 2}};
  const std::uint32_t boundaries[] = {3, 5};
  EXPECT_TRUE(DecodePollAnswer(Same("abi2_poll_answer", EncodePollAnswer(entries, boundaries))));
  const PollEntry loaded[] = {{.operation = 1,
                               .lease = 2,
                               .revision = 3,
                               .state = static_cast<std::uint32_t>(TicketState::kReady),
                               .found = 5,
                               .reason = static_cast<std::uint32_t>(MissReason::kEvicted),
                               .loaded = 4}};
  EXPECT_TRUE(DecodePollAnswer(Same("abi3_poll_answer", EncodePollAnswer(loaded, {}))));
  EXPECT_TRUE(DecodeClaim(
      Same("abi2_claim", EncodeClaim({.consumer_key_hi = 1, .consumer_key_lo = 2, .operation = 3, .revision = 4}))));
}

TEST(Golden, PayloadsOfPublishAndRestore) {
  ReserveHeader reserve{};
  reserve.parent = HashOf(0xa0);
  reserve.group = 1;
  reserve.shard = 2;
  reserve.first_depth = 3;
  reserve.prompt_tokens = 4;
  reserve.answer_tokens = 5;
  reserve.slot_bytes = 6144;
  EXPECT_TRUE(DecodeReserve(Same("reserve", EncodeReserve(reserve, kHashes))));
  EXPECT_TRUE(
      DecodeReserveAnswer(Same("reserve_answer", BytesOfAll<ReserveEntry>({{4096, 7, 6144, 2}, {0, 0, 0, 3}}))));
  const CommitEntry commits[] = {{0x0102030405060708ULL, 7, 1, 0}};
  EXPECT_TRUE(DecodeCommit(Same("commit", EncodeCommit(commits))));
  EXPECT_TRUE(DecodeCommitAnswer(Same("commit_answer", BytesOfAll<std::uint32_t>({1, 2, 3}))));
  const std::uint32_t ranks[] = {0, 3};
  EXPECT_TRUE(DecodeBegin(Same("begin", EncodeBegin(9, ranks))));
  EXPECT_TRUE(DecodeEndV1(Same("abi1_end", EncodeEndV1(ranks))));
  const EndEntry mismatches[] = {{0x0102030405060708ULL, 3, 0}, {9, 0, 0}};
  EXPECT_TRUE(DecodeEnd(Same("abi2_end", EncodeEnd(mismatches))));
  const PlanEntryV1 old{4096, 7, 0x0102030405060708ULL, 6144, 2};
  EXPECT_TRUE(DecodePlanV1(Same("abi1_plan", BytesOf(old))));
  const PlanEntry plan{4096, 7, 0x0102030405060708ULL, 6144, 2, 1, 8};
  EXPECT_TRUE(DecodePlan(Same("abi2_plan", BytesOf(plan))));
}

// The frame is encoded as ever, and what it decodes to encodes to the same frame.
void SameFrame(const std::string& name, const BootstrapMessage& message) {
  const Bytes golden = Same(name, EncodeFrame(message).value());
  const auto decoded = DecodeFrame(std::span(golden).subspan(kFrameLengthBytes));
  ASSERT_TRUE(decoded) << name;
  EXPECT_TRUE(EncodeFrame(*decoded).value() == golden) << name;
}

TEST(Golden, BootstrapFrames) {
  SameFrame("frame_hello",
            Hello{.abi_min = 1, .abi_max = 2, .purpose = Purpose::kPublish, .name = "engine 1", .pid = 77});
  SameFrame("frame_welcome", Welcome{.abi = 2,
                                     .incarnation = kIncarnation,
                                     .session = SessionId(5),
                                     .client_token = 0x2122232425262728ULL,
                                     .geometry = {},
                                     .pool_bytes = std::uint64_t{4} << 30U,
                                     .pool_named = false,
                                     .manager_pid = 78});
  SameFrame("frame_refusal", Refusal{.code = Code::kBusy, .text = "no place", .abi_min = 1, .abi_max = 2});
  SameFrame("frame_probe", Probe{});
  SameFrame("frame_probe_reply", ProbeReply{.pid = 79});
  SameFrame("frame_lifecycle", Lifecycle{.session = SessionId(5),
                                         .id = 6,
                                         .kind = FRAME_REGISTER,
                                         .refused = true,
                                         .payload = BytesOfAll<std::uint8_t>({1, 2, 3})});
}

// One record of each kind, in tables of a small shape.
TEST(Golden, Tables) {
  const TablesShape shape{
      .pool_bytes = 1U << 20U, .unit_bytes = 1U << 16U, .max_slots = 70, .namespace_rows = 2, .session_rows = 2};
  const TablesLayout layout(shape);
  std::vector<std::uint64_t> words(layout.total_bytes / sizeof(std::uint64_t));
  SpanTable tables(std::as_writable_bytes(std::span(words)));
  ASSERT_TRUE(StoreTablesHeader(tables, {.shape = shape, .pool_id_hi = 0x0102030405060708ULL, .pool_id_lo = 9}));
  ASSERT_TRUE(BeginLife(tables));
  ASSERT_TRUE(StoreReservedBytes(tables, 0x2122232425262728ULL));
  const auto bytes = [&](std::uint64_t offset, std::size_t count) {
    const auto part = tables.bytes().subspan(offset, count);
    return Bytes(part.begin(), part.end());
  };
  SlotRecord slot{.namespace_row = 2, .group = 3, .shard = 4, .slab_unit = 5, .depth = 6, .last_use_ns = 7};
  slot.hash = state::BlockHash::From(std::as_bytes(std::span("a hash of thirty-two bytes......")));
  slot.parent = state::BlockHash::From(std::as_bytes(std::span("the one before of as many bytes.")));
  slot.payload_bytes = 1000;
  slot.slot_bytes = 1024;
  slot.checksum = 0x1112131415161718ULL;
  slot.generation = FirstGeneration(1);
  slot.offset = 5U << 16U;
  slot.state = SlotState::kSealed;
  TableWindow slots(tables, layout.slots.offset, layout.slots.bytes);
  ASSERT_TRUE(StoreSlotRecord(slots, 1, slot));
  NamespaceRecord space{.digest = {}, .shard_count = 2, .groups = {}};
  space.digest.fill(std::byte{0x6e});
  space.groups.push_back({.block_tokens = 32,
                          .page_count = 30,
                          .page_bytes = 36'864,
                          .kind = state::GroupKind::kSlidingWindow,
                          .span_tokens = 128,
                          .hash_block_tokens = 16});
  TableWindow namespaces(tables, layout.namespaces.offset, layout.namespaces.bytes);
  ASSERT_TRUE(StoreNamespace(namespaces, NamespaceRow(2), space));
  TableWindow sessions(tables, layout.sessions.offset, layout.sessions.bytes);
  pool::SessionLists lists(sessions, shape.session_rows, shape.max_slots);
  ASSERT_TRUE(lists.Open(1, {.incarnation = kIncarnation, .token = 10, .pid = 11, .watched = true}));
  lists.Add(1, pool::SlotIndex(2));
  lists.Add(1, pool::SlotIndex(70));
  Same("tables1_header", bytes(0, 88));
  Same("tables1_slot", bytes(layout.slots.offset + kSlotRecordBytes, kSlotRecordBytes));
  Same("tables1_namespace", bytes(layout.namespaces.offset + kNamespaceRecordBytes, kNamespaceRecordBytes));
  Same("tables1_session", bytes(layout.sessions.offset + SessionRowBytes(70), SessionRowBytes(70)));
  EXPECT_EQ(layout.total_bytes, 24'576U);
}

TEST(Golden, LifecyclePayloads) {
  Register registration;
  registration.set_instance("engine");
  registration.set_role(Register::ROLE_WORKER);
  registration.set_rank(1);
  registration.set_world_size(2);
  registration.set_shard(1);
  registration.set_shard_count(2);
  registration.set_computation_digest(std::string(32, 'c'));
  registration.set_representation_digest(std::string(32, 'r'));
  CacheGroup& group = *registration.add_groups();
  group.set_block_tokens(16);
  group.set_page_count(30);
  group.set_page_bytes(36'864);
  registration.set_name("worker 1");
  EXPECT_TRUE(manager::DecodeRegister(Same("lifecycle_register", Serialized(registration))));

  service::RegisterOutcome outcome;
  outcome.instance = InstanceId(3);
  outcome.namespace_ready = true;
  outcome.namespace_digest.fill(static_cast<decltype(outcome.namespace_digest)::value_type>(0x6e));
  Same("lifecycle_register_reply", manager::EncodeRegisterReply(outcome, 4096));

  SessionDrained drained;
  drained.set_client_token(0x2122232425262728ULL);
  drained.set_incarnation(std::string("\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11", 16));
  const auto frame = manager::DecodeDrained(Same("lifecycle_session_drained", Serialized(drained)));
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->client_token, 0x2122232425262728ULL);
  EXPECT_EQ(frame->incarnation, kIncarnation);

  manager::Health health;
  health.version = "1.2.3";
  health.pid = 78;
  health.incarnation = kIncarnation;
  health.uptime_seconds = 2.5;
  health.samples.push_back({"orbitkv_sessions", "Sessions.", {{"session", "5"}}, 3, false});
  const auto decoded = manager::DecodeHealth(Same("lifecycle_health_reply", manager::EncodeHealth(health)));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->samples.size(), 1U);
  Same("lifecycle_error_reply", manager::EncodeError(Code::kRefused, "two ranks disagree"));
  EXPECT_TRUE(manager::DecodeEmpty(Same("lifecycle_empty", manager::EncodeEmptyReply())));
}

}  // namespace
}  // namespace orbitkv::wire
