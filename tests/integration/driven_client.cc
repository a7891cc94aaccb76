#include "driven_client.h"

#include <cstddef>
#include <fstream>
#include <gtest/gtest.h>

#include "orbitkv/wire/session_layout.h"

namespace orbitkv::integration {

DrivenClient::DrivenClient(const std::filesystem::path& directory, const std::string& socket,
                           const std::string& instance, std::uint64_t deadline_ms)
    : driven_(directory, {ORBITKV_CLIENT_DRIVER_PROGRAM, socket, instance, std::to_string(deadline_ms)}) {
  Expect("up", "up");
}

void DrivenClient::Expect(const std::string& line, const std::string& answer) {
  EXPECT_EQ(Do(line), answer) << line << "\n" << program().error();
}

std::string DrivenClient::Save(std::uint32_t chain) {
  Expect("save " + std::to_string(chain), "ok");
  return Do("finish");
}

std::string DrivenClient::Load(std::uint32_t chain) {
  Expect("ask " + std::to_string(chain), "ok");
  if (const std::string found = Do("answer"); found != "found 4") return found;
  Expect("begin", "ok");
  Expect("load", "ok");
  return Do("finish");
}

std::uint64_t DrivenClient::Posted() const {
  const std::string folder = "/proc/" + std::to_string(driven_.program().pid());
  std::ifstream maps(folder + "/maps");
  std::ifstream memory(folder + "/mem", std::ios::binary);
  std::uint64_t posted = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:orbitkv-session") == std::string::npos) continue;
    std::uint32_t head = 0;
    const std::uint64_t address = std::stoull(line, nullptr, 16);
    memory.seekg(static_cast<std::streamoff>(address + offsetof(wire::SessionHeader, request_head)));
    memory.read(reinterpret_cast<char*>(&head), sizeof head);
    EXPECT_TRUE(memory.good()) << line;
    posted += head;
  }
  return posted;
}

std::size_t DrivenClient::Sockets() const {
  std::size_t count = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(driven_.program().pid()) + "/fd", error)) {
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    count += target.string().starts_with("socket:") ? 1 : 0;
  }
  return count;
}

}  // namespace orbitkv::integration
