#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "orbitkv/base/check.h"
#include "orbitkv/channel/handshake.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/file.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/testing/fake_manager.h"

namespace orbitkv::channel {
namespace {

using testing::FakeManager;

const FakeManager::Options kEcho{.echo = true};

using ::testing::HasSubstr;

std::uint64_t Soon() { return os::DeadlineAfter(10'000'000'000U); }

// What the Manager sends back on a connection: a message, or kUnavailable when it closed it.
Result<wire::BootstrapMessage> Receive(int socket) {
  std::uint32_t length = 0;
  ORBITKV_TRY(os::ReceiveAll(socket, std::as_writable_bytes(std::span(&length, 1)), nullptr, Soon()));
  std::vector<std::byte> body(length);
  ORBITKV_TRY(os::ReceiveAll(socket, body, nullptr, Soon()));
  return wire::DecodeFrame(body);
}

Result<wire::BootstrapMessage> Say(int socket, std::span<const std::byte> bytes, std::vector<int> fds = {}) {
  ORBITKV_TRY(os::SendAll(socket, bytes, fds, Soon()));
  return Receive(socket);
}

std::vector<std::byte> HelloFrame() { return wire::EncodeFrame(wire::Hello{.name = "raw"}).value(); }

TEST(Bootstrap, SocketAndDirectoryAreForOneUser) {
  FakeManager manager(kEcho);
  manager.bootstrap().socket_path = std::filesystem::path(manager.socket_path()).parent_path() / "run" / "m.sock";
  ASSERT_TRUE(manager.Start());
  struct stat info = {};
  ASSERT_EQ(::stat(manager.socket_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0600U);
  const auto directory = std::filesystem::path(manager.socket_path()).parent_path().string();
  EXPECT_EQ(os::DirectoryFactsOf(directory).value().mode, 0700U);
}

TEST(Bootstrap, NoCommonAbiIsRefusedNamingBothRanges) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  ConnectOptions options = manager.Client();
  options.abi_min = 5;
  options.abi_max = 7;
  std::string message;
  options.message = &message;
  const auto refused = ClientSession::Connect(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kUnsupported);
  EXPECT_THAT(message, HasSubstr("1 to 3"));
  EXPECT_THAT(message, HasSubstr("5 to 7"));
}

TEST(Bootstrap, HighestCommonAbiIsTaken) {
  FakeManager manager(kEcho);
  manager.bootstrap().abi_max = 4;
  ASSERT_TRUE(manager.Start());
  ConnectOptions options = manager.Client();
  options.abi_max = 3;
  const auto client = ClientSession::Connect(options).value();
  EXPECT_EQ(client->abi(), 3);
  EXPECT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
}

TEST(Bootstrap, SessionsAreBoundedAndAClosedOneMakesRoom) {
  FakeManager manager(kEcho);
  manager.bootstrap().max_sessions = 1;
  ASSERT_TRUE(manager.Start());
  auto first = manager.Connect();
  const SessionId session = first->epoch();
  EXPECT_EQ(ClientSession::Connect(manager.Client()).error().code, Code::kBusy);
  // The socket's end is not the process's end: the place stays taken.
  first.reset();
  ASSERT_TRUE(manager.Seen("hangup"));
  EXPECT_EQ(manager.server().session_count(), 1U);
  EXPECT_EQ(manager.CountOf("death"), 0U);
  manager.server().Close(session);
  const std::uint64_t deadline = Soon();
  while (manager.server().session_count() > 0 && os::MonotonicNs() < deadline) {
  }
  EXPECT_TRUE(ClientSession::Connect(manager.Client()).has_value());
}

// What has hung up takes no place from who is there, until as many have.
TEST(Bootstrap, SessionsWithoutAConnectionHavePlacesOfTheirOwnAndThoseAreBoundedToo) {
  FakeManager manager(kEcho);
  manager.bootstrap().max_sessions = 2;
  ASSERT_TRUE(manager.Start());
  std::vector<SessionId> detached;
  while (detached.size() < 3) {
    auto client = ClientSession::Connect(manager.Client());
    ASSERT_TRUE(client) << detached.size();
    detached.push_back((*client)->epoch());
    client->reset();
    ASSERT_TRUE(manager.Seen("hangup", detached.size()));
  }
  const auto last = manager.Connect();
  std::string message;
  ConnectOptions options = manager.Client();
  options.message = &message;
  EXPECT_EQ(ClientSession::Connect(options).error().code, Code::kBusy);
  EXPECT_THAT(message, HasSubstr("3 more have lost their connection"));
  manager.server().Close(detached[0]);
  const std::uint64_t deadline = Soon();
  while (manager.server().session_count() > 3 && os::MonotonicNs() < deadline) {
  }
  EXPECT_TRUE(ClientSession::Connect(manager.Client()).has_value());
}

// The next one comes in after an hour, so whoever comes in has had one of the burst.
TEST(Bootstrap, ConnectionsOfAllProcessesTogetherHaveAPace) {
  FakeManager manager(kEcho);
  manager.bootstrap().accept_pace = {.burst = 5, .interval_ns = 3'600'000'000'000U};
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(ClientSession::Connect(manager.Client()).has_value() ? 0 : 1);
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << i;
  }
  EXPECT_EQ(manager.server().stats().accepted, 4U);
  std::vector<os::UniqueFd> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(os::ConnectUnix(manager.socket_path(), Soon()).value());
  const auto hello = HelloFrame();
  const os::UniqueFd self = os::OwnPidfd().value();
  EXPECT_TRUE(Say(waiting.front().get(), hello, {self.get()}).has_value()) << "the first in line had the last one";
  ConnectOptions options = manager.Client();
  options.deadline_ns = os::DeadlineAfter(20'000'000);
  EXPECT_EQ(ClientSession::Connect(options).error().code, Code::kTimedOut);
  EXPECT_EQ(manager.server().stats().accepted, 5U);
  EXPECT_GE(manager.server().stats().delayed_accepts, 1U);
  // Who was let in is served as before.
  EXPECT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
  EXPECT_TRUE(client->Exchange(1, {}, Soon()).has_value());
}

TEST(Bootstrap, FramesOfAllSessionsTogetherHaveAPaceAndTurnsGoAround) {
  FakeManager manager(kEcho);
  manager.bootstrap().frame_pace = {.burst = 4, .interval_ns = 10'000'000};
  ASSERT_TRUE(manager.Start());
  const auto loud = manager.Connect();
  const auto quiet = manager.Connect();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(loud->Exchange(1, {}, Soon()).has_value());
  const std::uint64_t began = os::MonotonicNs();
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> loud_frames{0};
  std::thread flood([&] {
    while (!stop && loud->Exchange(1, {}, Soon())) ++loud_frames;
  });
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t before = loud_frames;
    ASSERT_TRUE(quiet->Exchange(1, {}, Soon()).has_value());
    // At most the one that was in line already, and the one behind it.
    EXPECT_LE(loud_frames - before, 3U) << i;
  }
  stop = true;
  flood.join();
  const BootstrapStats stats = manager.server().stats();
  EXPECT_LE(stats.frames, 4 + 1 + (os::MonotonicNs() - began) / 10'000'000);
  EXPECT_GE(stats.delayed_frames, 10U);
  EXPECT_TRUE(loud->Call({.deadline_ns = Soon()}).has_value());
}

// Several frames in one piece, of which the later ones wait for their turns; and a client that goes while one waits.
TEST(Bootstrap, FramesThatWaitForTheirTurnAreAnsweredInOrderOrGoWithTheirClient) {
  FakeManager manager(kEcho);
  manager.bootstrap().frame_pace = {.burst = 1, .interval_ns = 5'000'000};
  manager.bootstrap().frame_ns = 1'000'000;  // shorter than a turn: who waits for one is not slow
  ASSERT_TRUE(manager.Start());
  os::UniqueFd socket = os::ConnectUnix(manager.socket_path(), Soon()).value();
  const os::UniqueFd self = os::OwnPidfd().value();
  const auto welcome = std::get<wire::Welcome>(Say(socket.get(), HelloFrame(), {self.get()}).value());
  const auto frame = [&](std::uint64_t id) {
    return wire::EncodeFrame(wire::Lifecycle{.session = welcome.session, .id = id, .kind = 1}).value();
  };
  std::vector<std::byte> bytes;
  for (std::uint64_t id = 1; id <= 4; ++id) std::ranges::copy(frame(id), std::back_inserter(bytes));
  ASSERT_TRUE(os::SendAll(socket.get(), bytes, {}, Soon()));
  for (std::uint64_t id = 1; id <= 4; ++id) {
    const auto reply = Receive(socket.get());
    ASSERT_TRUE(reply && std::holds_alternative<wire::Lifecycle>(*reply)) << id;
    EXPECT_EQ(std::get<wire::Lifecycle>(*reply).id, id);
  }
  EXPECT_EQ(manager.CountOf("hangup"), 0U);
  ASSERT_TRUE(os::SendAll(socket.get(), bytes, {}, Soon()));
  socket.reset();
  EXPECT_TRUE(manager.Seen("hangup"));
}

TEST(Bootstrap, WhoEndsSessionsTooFastIsBusyForAWhile) {
  FakeManager manager(kEcho);
  manager.bootstrap().pace = {.burst = 3, .interval_ns = 20'000'000'000};
  ASSERT_TRUE(manager.Start());
  // Any number at once.
  std::vector<std::unique_ptr<ClientSession>> sessions;
  for (int i = 0; i < 8; ++i) sessions.push_back(manager.Connect());
  const auto end_one = [&] {
    const std::size_t before = manager.server().session_count();
    manager.server().Close(sessions.back()->epoch());
    const std::uint64_t deadline = Soon();
    while (manager.server().session_count() == before && os::MonotonicNs() < deadline) {
    }
    sessions.pop_back();
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ClientSession::Connect(manager.Client()).has_value()) << i;
    end_one();
  }
  std::string message;
  ConnectOptions options = manager.Client();
  options.message = &message;
  EXPECT_EQ(ClientSession::Connect(options).error().code, Code::kBusy);
  EXPECT_THAT(message, HasSubstr("process " + std::to_string(::getpid()) + " opens and ends sessions too fast"));
  // Another process is not meant.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ClientSession::Connect(manager.Client()).has_value() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Bootstrap, BadGreetingsCloseTheConnectionAndHarmNobody) {
  FakeManager manager(kEcho);
  manager.bootstrap().handshake_ns = 20'000'000;
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  const auto hello = HelloFrame();
  const auto connect = [&manager] { return os::ConnectUnix(manager.socket_path(), Soon()).value(); };

  const os::UniqueFd silent = connect();
  const os::UniqueFd half = connect();
  ASSERT_TRUE(os::SendAll(half.get(), std::span(hello).first(6), {}, Soon()));
  const os::UniqueFd oversized = connect();
  const std::uint32_t lengths[] = {wire::kMaxFrameBytes + 1};
  EXPECT_EQ(Say(oversized.get(), std::as_bytes(std::span(lengths))).error().code, Code::kUnavailable);
  const os::UniqueFd wrong = connect();
  const auto lifecycle = wire::EncodeFrame(wire::Lifecycle{.session = client->epoch(), .id = 1, .kind = 1}).value();
  EXPECT_EQ(Say(wrong.get(), lifecycle).error().code, Code::kUnavailable);
  EXPECT_EQ(Receive(silent.get()).error().code, Code::kUnavailable);
  EXPECT_EQ(Receive(half.get()).error().code, Code::kUnavailable);

  const os::UniqueFd without = connect();
  const auto refusal = Say(without.get(), hello).value();
  EXPECT_EQ(std::get<wire::Refusal>(refusal).code, Code::kInvalid);
  const os::UniqueFd no_pidfd = connect();
  EXPECT_EQ(std::get<wire::Refusal>(Say(no_pidfd.get(), hello, {no_pidfd.get()}).value()).code, Code::kInvalid);
  EXPECT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
}

TEST(Bootstrap, PlacesForStatusToolsAreTheirOwn) {
  FakeManager manager(kEcho);
  manager.bootstrap().max_sessions = 1;
  manager.bootstrap().max_admin_sessions = 1;
  ASSERT_TRUE(manager.Start());
  const auto engine = manager.Connect();
  std::string message;
  ConnectOptions options = manager.Client();
  options.message = &message;
  EXPECT_EQ(ClientSession::Connect(options).error().code, Code::kBusy);
  EXPECT_THAT(message, HasSubstr("all 1 sessions are taken"));
  EXPECT_THAT(message, HasSubstr("--max-sessions"));
  options.purpose = wire::Purpose::kAdmin;
  const auto tool = ClientSession::Connect(options).value();
  EXPECT_EQ(ClientSession::Connect(options).error().code, Code::kBusy);
  EXPECT_THAT(message, HasSubstr("1 status tools"));
}

TEST(Bootstrap, SilentPeersDoNotKeepNewcomersOut) {
  FakeManager manager(kEcho);
  manager.bootstrap().max_half_open = 4;
  manager.bootstrap().handshake_ns = 600'000'000'000U;
  ASSERT_TRUE(manager.Start());
  const auto hello = HelloFrame();
  std::vector<os::UniqueFd> silent;
  for (int i = 0; i < 12; ++i) {
    silent.push_back(os::ConnectUnix(manager.socket_path(), Soon()).value());
    ASSERT_TRUE(os::SendAll(silent.back().get(), std::span(hello).first(static_cast<std::size_t>(i % 7)), {}, Soon()));
  }
  const auto client = manager.Connect();
  EXPECT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
  // The oldest had to go; the youngest that are left may still greet.
  EXPECT_EQ(Receive(silent.front().get()).error().code, Code::kUnavailable);
  const os::UniqueFd self = os::OwnPidfd().value();
  const os::UniqueFd late = std::move(silent.back());
  const auto answer = Say(late.get(), std::span(hello).subspan(11 % 7), {self.get()});
  EXPECT_TRUE(answer.has_value() && std::holds_alternative<wire::Welcome>(*answer));
}

TEST(Bootstrap, GreetingThatGoesOnAndOnEndsTheConnection) {
  FakeManager manager(kEcho);
  manager.bootstrap().handshake_ns = 600'000'000'000U;
  ASSERT_TRUE(manager.Start());
  const os::UniqueFd socket = os::ConnectUnix(manager.socket_path(), Soon()).value();
  std::vector<std::byte> endless(64U << 10U);
  const std::uint32_t announced = wire::kMaxFrameBytes;
  std::memcpy(endless.data(), &announced, sizeof announced);
  // It may be closed before all of it is sent.
  static_cast<void>(os::SendAll(socket.get(), endless, {}, Soon()));
  EXPECT_EQ(Receive(socket.get()).error().code, Code::kUnavailable);
}

TEST(Bootstrap, FrameThatIsNotFinishedInTimeEndsTheConnectionOnly) {
  FakeManager manager(kEcho);
  manager.bootstrap().frame_ns = 20'000'000;
  ASSERT_TRUE(manager.Start());
  // A session may be silent between frames for as long as it likes.
  const auto other = manager.Connect();
  EXPECT_TRUE(other->Exchange(1, {}, Soon()).has_value());
  const os::UniqueFd socket = os::ConnectUnix(manager.socket_path(), Soon()).value();
  const os::UniqueFd self = os::OwnPidfd().value();
  const auto welcome = std::get<wire::Welcome>(Say(socket.get(), HelloFrame(), {self.get()}).value());
  const auto frame = wire::EncodeFrame(wire::Lifecycle{.session = welcome.session, .id = 1, .kind = 1}).value();
  ASSERT_TRUE(os::SendAll(socket.get(), std::span(frame).first(7), {}, Soon()));
  EXPECT_EQ(Receive(socket.get()).error().code, Code::kUnavailable);
  EXPECT_TRUE(manager.Seen("hangup"));
  EXPECT_EQ(manager.CountOf("death"), 0U);
  EXPECT_FALSE(other->hung_up());
  EXPECT_TRUE(other->Exchange(1, {}, Soon()).has_value());
}

TEST(Bootstrap, PeerThatDoesNotReadItsRepliesLosesItsConnection) {
  FakeManager manager(kEcho);
  manager.bootstrap().frame_ns = 20'000'000;
  ASSERT_TRUE(manager.Start());
  const os::UniqueFd socket = os::ConnectUnix(manager.socket_path(), Soon()).value();
  const os::UniqueFd self = os::OwnPidfd().value();
  const auto welcome = std::get<wire::Welcome>(Say(socket.get(), HelloFrame(), {self.get()}).value());
  const std::vector<std::byte> large(1U << 20U);
  const auto frame =
      wire::EncodeFrame(wire::Lifecycle{.session = welcome.session, .id = 1, .kind = 1, .payload = large}).value();
  ASSERT_TRUE(os::SendAll(socket.get(), frame, {}, Soon()));
  EXPECT_TRUE(manager.Seen("hangup"));
  EXPECT_TRUE(manager.Connect()->Call({.deadline_ns = Soon()}).has_value());
}

TEST(Bootstrap, PidfdOfAnotherProcessIsRefused) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const os::UniqueFd socket = os::ConnectUnix(manager.socket_path(), Soon()).value();
  const os::UniqueFd parent = os::OpenPidfd(::getppid()).value();
  const auto refusal = Say(socket.get(), HelloFrame(), {parent.get()}).value();
  EXPECT_EQ(std::get<wire::Refusal>(refusal).code, Code::kRefused);
}

TEST(Bootstrap, FrameOfAnotherEpochEndsTheConnection) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const os::UniqueFd socket = os::ConnectUnix(manager.socket_path(), Soon()).value();
  const os::UniqueFd self = os::OwnPidfd().value();
  const auto welcome = std::get<wire::Welcome>(Say(socket.get(), HelloFrame(), {self.get()}).value());
  const auto frame = [](std::uint64_t session, std::uint64_t id) {
    return wire::EncodeFrame(wire::Lifecycle{.session = SessionId(session), .id = id, .kind = 1}).value();
  };
  EXPECT_TRUE(Say(socket.get(), frame(welcome.session.value(), 1)).has_value());
  EXPECT_EQ(Say(socket.get(), frame(welcome.session.value() + 1, 2)).error().code, Code::kUnavailable);
  EXPECT_TRUE(manager.Seen("hangup"));
}

TEST(Bootstrap, SecondManagerIsRefusedNamingThePid) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  FakeManager second(kEcho);
  second.bootstrap().socket_path = manager.socket_path();
  const Status refused = second.Start();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kRefused);
  EXPECT_EQ(refused.error().a, static_cast<std::uint64_t>(::getpid()));
  EXPECT_TRUE(manager.Connect()->Call({.deadline_ns = Soon()}).has_value());
}

TEST(Bootstrap, LockThatStaysHeldTimesOutAndAFreeOneStarts) {
  FakeManager manager(kEcho);
  manager.bootstrap().lock_wait_ns = 60'000'000;
  {
    const auto lock = os::FileLock::TryAcquire(manager.socket_path() + ".lock").value();
    EXPECT_EQ(manager.Start().error().code, Code::kTimedOut);
  }
  EXPECT_TRUE(manager.Start());
}

TEST(Bootstrap, StopLeavesTheLockFileOnlyAndALeftOverSocketIsReplaced) {
  FakeManager manager(kEcho);
  {
    const os::UniqueFd left_over = os::ListenUnix(manager.socket_path()).value();
  }
  ASSERT_TRUE(std::filesystem::exists(manager.socket_path()));
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  EXPECT_FALSE(client->hung_up());
  manager.Stop();
  EXPECT_TRUE(client->hung_up());
  EXPECT_FALSE(std::filesystem::exists(manager.socket_path()));
  EXPECT_TRUE(os::FileLock::TryAcquire(manager.socket_path() + ".lock").value().has_value());
  EXPECT_EQ(ClientSession::Connect(manager.Client()).error().code, Code::kUnavailable);
}

// A process made before any thread exists, that runs `body` with the socket path once Go was called.
class Child {
 public:
  explicit Child(const std::function<int(const std::string&)>& body) {
    int ends[2] = {-1, -1};
    ORBITKV_CHECK(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[1]);
      char path[256] = {};
      ORBITKV_CHECK(::read(ends[0], path, sizeof path - 1) > 0);
      ::_exit(body(path));
    }
    ::close(ends[0]);
    out_ = os::UniqueFd(ends[1]);
  }
  ~Child() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  void Go(const std::string& path) {
    ORBITKV_CHECK(::write(out_.get(), path.data(), path.size()) == static_cast<ssize_t>(path.size()));
  }
  pid_t pid() const { return pid_; }
  int Join() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  os::UniqueFd out_;
};

TEST(BootstrapProcess, DeathComesByPidfdAfterAKill) {
  Child child([](const std::string& path) {
    const auto client = ClientSession::Connect({.socket_path = path, .name = "child", .deadline_ns = Soon()});
    if (!client) return 1;
    ::pause();
    return 0;
  });
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  child.Go(manager.socket_path());
  ASSERT_TRUE(manager.Seen("opened"));
  EXPECT_EQ(manager.CountOf("death"), 0U);
  ::kill(child.pid(), SIGKILL);
  EXPECT_TRUE(manager.Seen("death"));
  EXPECT_EQ(manager.server().session_count(), 0U);
}

TEST(BootstrapProcess, ProcessThatFloodsPaysForItself) {
  // More connections than there are places for half-open ones, none of which greets.
  Child child([](const std::string& path) {
    std::vector<os::UniqueFd> silent;
    for (int i = 0; i < 32; ++i) {
      auto socket = os::ConnectUnix(path, Soon());
      if (!socket) return 1;
      silent.push_back(std::move(*socket));
    }
    // The first of them was closed to make room.
    return Receive(silent.front().get()).error().code == Code::kUnavailable ? 0 : 2;
  });
  FakeManager manager(kEcho);
  manager.bootstrap().max_half_open = 8;
  manager.bootstrap().handshake_ns = 600'000'000'000U;
  ASSERT_TRUE(manager.Start());
  const auto hello = HelloFrame();
  const os::UniqueFd slow = os::ConnectUnix(manager.socket_path(), Soon()).value();
  ASSERT_TRUE(os::SendAll(slow.get(), std::span(hello).first(5), {}, Soon()));
  ASSERT_TRUE(manager.Connect());  // so that the slow one was accepted before the flood
  child.Go(manager.socket_path());
  EXPECT_EQ(child.Join(), 0);
  const os::UniqueFd self = os::OwnPidfd().value();
  const auto answer = Say(slow.get(), std::span(hello).subspan(5), {self.get()});
  EXPECT_TRUE(answer.has_value() && std::holds_alternative<wire::Welcome>(*answer));
}

TEST(BootstrapProcess, ForeignUserIsRefusedByBothSides) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  Child child([](const std::string& path) {
    if (::setresuid(65534, 65534, 65534) != 0) return 10;
    // The client's own check, then a client that does not check.
    const auto checked = ClientSession::Connect({.socket_path = path, .name = "x", .deadline_ns = Soon()});
    if (checked || checked.error().code != Code::kRefused) return 11;
    const auto socket = os::ConnectUnix(path, Soon());
    const auto self = os::OwnPidfd();
    if (!socket || !self) return 12;
    const auto answer = Say(socket->get(), HelloFrame(), {self->get()});
    const auto* refusal = answer ? std::get_if<wire::Refusal>(&*answer) : nullptr;
    if (refusal == nullptr || refusal->code != Code::kRefused) return 13;
    return refusal->text.find("65534") != std::string::npos ? 0 : 14;
  });
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  // Wider than the Manager makes them, so that the credentials alone decide.
  ::chmod(std::filesystem::path(manager.socket_path()).parent_path().c_str(), 0755);
  ::chmod(manager.socket_path().c_str(), 0666);
  child.Go(manager.socket_path());
  EXPECT_EQ(child.Join(), 0);
  EXPECT_EQ(manager.CountOf("opened"), 0U);
}

TEST(BootstrapProcess, StoppedManagerCostsDeadlinesAndItsLateAnswerIsHandedBack) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t server = ::fork();
  if (server == 0) {
    FakeManager manager(kEcho);
    if (!manager.Start()) ::_exit(1);
    const std::string path = manager.socket_path();
    if (::write(ends[1], path.data(), path.size()) < 0) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  char path[256] = {};
  ASSERT_GT(::read(ends[0], path, sizeof path - 1), 0);
  std::vector<std::uint64_t> late;
  ConnectOptions options{.socket_path = path, .name = "client", .deadline_ns = Soon()};
  options.late_answer = [&late](const LateAnswer& answer) { late.push_back(answer.request_scalar0); };
  const auto client = ClientSession::Connect(options).value();
  ASSERT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
  ::kill(server, SIGSTOP);
  ASSERT_EQ(::waitpid(server, nullptr, WUNTRACED), server);
  // One that expires before the Manager sees it, and one that the caller only stops waiting for.
  EXPECT_EQ(client->Call({.scalar0 = 1, .deadline_ns = os::DeadlineAfter(3'000'000)}).error().code, Code::kTimedOut);
  const RequestId id = client->Post({.scalar0 = 2, .deadline_ns = Soon()}).value();
  EXPECT_EQ(client->Wait(id, os::DeadlineAfter(3'000'000)).error().code, Code::kTimedOut);
  client->Abandon(id);
  EXPECT_EQ(client->pending(), 2U);
  EXPECT_EQ(client->Exchange(1, {}, os::DeadlineAfter(3'000'000)).error().code, Code::kTimedOut);
  ::kill(server, SIGCONT);
  EXPECT_EQ(client->Call({.scalar0 = 3, .deadline_ns = Soon()}).value().scalar0, 3U);
  EXPECT_EQ(late, std::vector<std::uint64_t>{2});
  EXPECT_EQ(client->pending(), 0U);
  EXPECT_TRUE(client->Exchange(1, {}, Soon()).has_value());
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  EXPECT_TRUE(client->hung_up());
  EXPECT_EQ(client->Call({.deadline_ns = os::DeadlineAfter(3'000'000)}).error().code, Code::kTimedOut);
  std::filesystem::remove_all(std::filesystem::path(path).parent_path());
}

}  // namespace
}  // namespace orbitkv::channel
