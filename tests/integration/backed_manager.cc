// A Manager with blocks behind its pool, each of whose reads takes a set time: what lies behind a real one takes as
// long as it likes.
//   backed_manager BLOCKS READ_MS MANAGER_ARGUMENTS...
// BLOCKS: a file of the digests of computation and representation, 32 bytes each; u32 tokens of a block, u32 pages of a
// block, u64 bytes of a page, u32 count of blocks, u32 0; then for each block, in prefix order, its hash of 32 bytes
// and its pages.
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/manager/manager.h"
#include "orbitkv/os/signal_fd.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/testing/ram_backing.h"

namespace orbitkv::integration {
namespace {

struct Header {
  state::Digest computation;
  state::Digest representation;
  std::uint32_t block_tokens;
  std::uint32_t page_count;
  std::uint64_t page_bytes;
  std::uint32_t count;
  std::uint32_t reserved;
};
static_assert(sizeof(Header) == 88);

std::unique_ptr<testing::RamBacking> Behind(const std::string& path, std::uint64_t read_ns) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Header header{};
  ORBITKV_CHECK(text.size() >= sizeof header);
  std::memcpy(&header, text.data(), sizeof header);
  const std::uint64_t payload = copy::PayloadBytes(header.page_count, header.page_bytes);
  ORBITKV_CHECK(text.size() == sizeof header + header.count * (sizeof(state::BlockHash) + payload));
  const state::GroupShape shape{header.block_tokens, header.page_count, header.page_bytes};
  const state::Digest space =
      state::NamespaceDigest(header.computation, header.representation, std::span(&shape, 1), 1);
  auto backing = std::make_unique<testing::RamBacking>();
  backing->Fill([&](testing::RamSource& source) {
    source.set_delay([read_ns](const service::ComponentKey&) { return read_ns; });
    const char* at = text.data() + sizeof header;
    std::optional<state::BlockHash> before;
    for (std::uint32_t i = 0; i < header.count; ++i) {
      state::BlockHash hash{};
      std::memcpy(hash.bytes.data(), at, sizeof hash);
      std::vector<std::byte> slot(copy::SlotBytes(header.page_count, header.page_bytes));
      std::memcpy(slot.data(), at + sizeof hash, payload);
      at += sizeof hash + payload;
      std::vector<std::uint64_t> list;
      for (std::uint32_t page = 0; page < header.page_count; ++page) {
        list.push_back(copy::HashOnly(slot.data() + page * header.page_bytes, header.page_bytes));
      }
      copy::WriteList(slot.data(), header.page_bytes, list);
      const service::SourceRecord record{
          .parent = before, .depth = i, .checksum = copy::SlotChecksum({space, hash, 0, 0}, payload, list)};
      const auto slot_bytes = static_cast<std::uint32_t>(slot.size());
      source.Put({{space, hash, 0, 0}, slot_bytes}, record, std::move(slot));
      before = hash;
    }
  });
  return backing;
}

int Run(int argc, char** argv, char** envp) {
  if (argc < 3) return 2;
  auto backing = Behind(argv[1], std::stoull(argv[2]) * 1'000'000);
  argv[2] = argv[0];
  const auto line = manager::ParseCommandLine(argc - 2, argv + 2, envp);
  ORBITKV_CHECK(line.has_value());
  const auto signals = os::ShutdownSignals::Create();
  ORBITKV_CHECK(signals.has_value());
  const auto manager = manager::Manager::Start(line->config, std::move(backing));
  if (!manager) {
    fmt::print(stderr, "{}\n", manager.error().text);
    return 1;
  }
  fmt::print("{}\n", (*manager)->ReadyLine());
  std::fflush(stdout);
  static_cast<void>(signals->Wait());
  (*manager)->Stop();
  return 0;
}

}  // namespace
}  // namespace orbitkv::integration

int main(int argc, char** argv, char** envp) { return orbitkv::integration::Run(argc, argv, envp); }
