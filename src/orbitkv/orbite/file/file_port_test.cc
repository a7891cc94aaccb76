#include "orbitkv/orbite/file/file_port.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "orbitkv/orbite/conformance.h"
#include "orbitkv/os/direct_file.h"
#include "orbitkv/os/epoll.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/testing/virtual_disk.h"

namespace orbitkv::orbite {
namespace {

using Make = Result<std::unique_ptr<Port>> (*)(const FilePortOptions&);

class FileHarness final : public PortHarness {
 public:
  static std::unique_ptr<PortHarness> Create(Make make) {
    auto harness = std::make_unique<FileHarness>();
    std::string path = (std::filesystem::temp_directory_path() / "orbitkv-port-XXXXXX").string();
    const int made = ::mkstemp(path.data());
    if (made < 0) return nullptr;
    const os::UniqueFd closes(made);
    harness->file_.emplace(os::DirectFile::Open(path, os::DirectFile::Use::kReadWrite).value());
    std::filesystem::remove(path);
    if (!harness->file_->Reserve(kFarBytes)) return nullptr;
    harness->event_ = os::EventFd::Create().value();
    harness->epoll_ = os::Epoll::Create().value();
    if (!harness->epoll_.Add(harness->event_.fd(), EPOLLIN, 0)) return nullptr;
    auto port = make({.fds = {harness->file_->fd()}, .event_fd = harness->event_.fd(), .operations = 8});
    if (!port) return nullptr;
    harness->port_ = std::move(*port);
    return harness;
  }
  Port& port() override { return *port_; }
  void Wait(std::uint64_t deadline_ns) override {
    std::array<os::Epoll::Event, 1> events;
    static_cast<void>(epoll_.Wait(events, deadline_ns));
    event_.Drain();
  }

 private:
  std::optional<os::DirectFile> file_;
  os::EventFd event_;
  os::Epoll epoll_;
  std::unique_ptr<Port> port_;
};

class VirtualHarness final : public PortHarness {
 public:
  Port& port() override { return port_; }
  void Wait(std::uint64_t) override {}

 private:
  testing::VirtualDisk disk_{kFarBytes};
  testing::VirtualPort port_{disk_, 8};
};

INSTANTIATE_TEST_SUITE_P(File, TransferConformance,
                         ::testing::Values(PortCase{"ring", [] { return FileHarness::Create(&MakeRingPort); }},
                                           PortCase{"threads", [] { return FileHarness::Create(&MakeThreadPort); }},
                                           PortCase{"virtual",
                                                    []() -> std::unique_ptr<PortHarness> {
                                                      return std::make_unique<VirtualHarness>();
                                                    }}),
                         PortCaseName);

TEST(FilePort, TakesTheRingWhereItWorks) {
  const os::EventFd event = os::EventFd::Create().value();
  bool ring = false;
  const FilePortOptions options{.fds = {}, .event_fd = event.fd()};
  EXPECT_TRUE(MakeFilePort(options, &ring));
  EXPECT_EQ(ring, MakeRingPort(options).has_value());
}

}  // namespace
}  // namespace orbitkv::orbite
