// A dispatcher that is not started until everything it shall see is there.
#include "orbitkv/manager/dispatcher.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <thread>
#include <unistd.h>

#include "orbitkv/channel/client_session.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::manager {
namespace {

constexpr std::uint64_t kPatienceNs = 30'000'000'000;

double Figure(Metrics& metrics, const std::string& name) {
  for (const MetricSample& sample : metrics.Collect()) {
    if (sample.name == name) return sample.value;
  }
  return -1;
}

TEST(Dispatcher, AFrameBeyondTheQueuesBoundsIsAnsweredBusyAndTheSessionGoesOn) {
  const auto directory = std::filesystem::temp_directory_path() / ("orbitkv_dispatcher_" + std::to_string(::getpid()));
  std::filesystem::create_directories(directory);
  Config config;
  config.pool_bytes = std::uint64_t{8} << 20U;
  const auto core = Core::Create(config, 1).value();
  const auto waiter = channel::DispatcherWaiter::Create({.incarnation = {1, 2}}).value();
  const auto pool = os::CreateMemfd("pool", config.pool_bytes).value();
  ASSERT_TRUE(os::SealSize(pool.get()));
  Metrics metrics;
  Dispatcher dispatcher({core.get(), waiter.get(), &metrics, {1, 2}});
  channel::BootstrapOptions options;
  options.socket_path = directory / "run" / "m.sock";
  options.manager_page_fd = waiter->page_fd();
  options.pool_fds = {pool.get()};
  options.pool_bytes = config.pool_bytes;
  options.incarnation = {1, 2};
  const auto server = channel::BootstrapServer::Start(options, &dispatcher).value();
  dispatcher.Attach(server.get(), nullptr, nullptr);
  const auto client =
      channel::ClientSession::Connect(
          {.socket_path = options.socket_path, .name = "late", .deadline_ns = os::DeadlineAfter(kPatienceNs)})
          .value();
  for (std::size_t i = 0; i < EventQueue::kMaxFrames; ++i)
    dispatcher.OnFrame(SessionId(999), i, wire::FRAME_HEALTH, {});

  Result<channel::FrameReply> reply = Fail(Code::kTimedOut, "no reply yet");
  std::thread asks([&] { reply = client->Exchange(wire::FRAME_HEALTH, {}, os::DeadlineAfter(kPatienceNs)); });
  const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
  while (Figure(metrics, "orbitkv_frames_dropped_total") < 1 && os::MonotonicNs() < deadline) std::this_thread::yield();
  EXPECT_TRUE(dispatcher.Start());
  asks.join();
  ASSERT_TRUE(reply) << ToString(reply.error());
  EXPECT_TRUE(reply->refused);
  wire::ErrorReply error;
  ASSERT_TRUE(error.ParseFromArray(reply->payload.data(), static_cast<int>(reply->payload.size())));
  EXPECT_EQ(error.code(), static_cast<std::uint32_t>(Code::kBusy));
  const auto again = client->Exchange(wire::FRAME_HEALTH, {}, os::DeadlineAfter(kPatienceNs));
  ASSERT_TRUE(again) << ToString(again.error());
  EXPECT_FALSE(again->refused);
  dispatcher.Stop();
  server->Stop();
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace orbitkv::manager
