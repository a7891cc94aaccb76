#include "orbitkv/os/service_manager.h"

#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "orbitkv/os/memfd.h"

namespace orbitkv::os {
namespace {

TEST(ServiceManager, LinesAndDescriptorsArrive) {
  const std::string path = std::filesystem::temp_directory_path() / ("orbitkv_notify_" + std::to_string(::getpid()));
  const UniqueFd listener(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const UniqueFd passed = CreateMemfd("passed", 8192).value();
  const int fds[] = {passed.get()};
  ASSERT_TRUE(NotifyServiceManager(path, "FDSTORE=1\nFDNAME=pool", fds));
  char text[64] = {};
  iovec part = {text, sizeof text};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ASSERT_EQ(::recvmsg(listener.get(), &message, MSG_CMSG_CLOEXEC), 21);
  EXPECT_STREQ(text, "FDSTORE=1\nFDNAME=pool");
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  ASSERT_NE(header, nullptr);
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  EXPECT_EQ(FileBytes(UniqueFd(fd).get()).value(), 8192U);
  std::filesystem::remove(path);
  EXPECT_EQ(NotifyServiceManager(path, "READY=1").error().code, Code::kUnavailable);
  EXPECT_EQ(NotifyServiceManager("relative", "READY=1").error().code, Code::kInvalid);
  EXPECT_EQ(NotifyServiceManager("", "READY=1").error().code, Code::kInvalid);
}

// In a child, whose descriptors 3, 4 and 5 are its own.
int TakeInChild(const std::string& pid_offset, const std::string& count, const std::string& names,
                const std::function<bool(std::map<std::string, UniqueFd>&)>& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int first = CreateMemfd("a", 4096).value().release();
    const int second = CreateMemfd("b", 8192).value().release();
    const int a = ::dup(first);
    const int b = ::dup(second);
    ::dup2(a, 3);
    ::dup2(b, 4);
    ::close(5);
    auto taken = TakePassedFds([&](std::string_view name) -> std::optional<std::string> {
      if (name == "LISTEN_PID") return std::to_string(::getpid() + std::stoi(pid_offset));
      if (name == "LISTEN_FDS") return count;
      if (name == "LISTEN_FDNAMES") return names;
      return std::nullopt;
    });
    ::_exit(check(taken) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(ServiceManager, PassedDescriptorsAreTakenByName) {
  EXPECT_EQ(TakeInChild("0", "2", "pool:tables",
                        [](auto& taken) {
                          return taken.size() == 2 && FileBytes(taken.at("pool").get()).value() == 4096 &&
                                 FileBytes(taken.at("tables").get()).value() == 8192;
                        }),
            0);
  EXPECT_EQ(TakeInChild("0", "3", "pool:tables:absent", [](auto& taken) { return taken.size() == 2; }), 0);
  EXPECT_EQ(TakeInChild("0", "2", "pool", [](auto& taken) { return taken.size() == 2 && taken.contains(""); }), 0);
  EXPECT_EQ(TakeInChild("1", "2", "pool:tables", [](auto& taken) { return taken.empty(); }), 0);
  EXPECT_EQ(TakeInChild("0", "x", "pool:tables", [](auto& taken) { return taken.empty(); }), 0);
}

}  // namespace
}  // namespace orbitkv::os
