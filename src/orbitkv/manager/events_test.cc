#include "orbitkv/manager/events.h"

#include <gtest/gtest.h>

namespace orbitkv::manager {
namespace {

FrameArrived FrameOf(std::size_t bytes) {
  return {.session = SessionId(1), .frame_id = 1, .kind = 1, .payload = std::vector<std::byte>(bytes)};
}

TEST(EventQueue, FramesBeyondNumberOrBytesStayWithoutTheirPayload) {
  EventQueue queue;
  for (std::size_t i = 0; i < EventQueue::kMaxFrames; ++i) queue.Post(FrameOf(0));
  EXPECT_EQ(queue.dropped_frames(), 0U);
  queue.Post(FrameOf(100));
  queue.Post(SessionDied{SessionId(1)});
  std::vector<Event> taken;
  queue.Take(taken);
  ASSERT_EQ(taken.size(), EventQueue::kMaxFrames + 2);
  EXPECT_FALSE(std::get<FrameArrived>(taken[EventQueue::kMaxFrames - 1]).dropped);
  const auto& beyond = std::get<FrameArrived>(taken[EventQueue::kMaxFrames]);
  EXPECT_TRUE(beyond.dropped);
  EXPECT_TRUE(beyond.payload.empty());
  constexpr std::size_t kPiece = std::size_t{16} << 20U;
  for (std::size_t i = 0; i < EventQueue::kMaxFrameBytes / kPiece; ++i) queue.Post(FrameOf(kPiece));
  queue.Post(FrameOf(1));
  EXPECT_EQ(queue.dropped_frames(), 2U);
  queue.Take(taken);
  EXPECT_TRUE(std::get<FrameArrived>(taken.back()).dropped);
  queue.Post(FrameOf(kPiece));
  queue.Take(taken);
  EXPECT_FALSE(std::get<FrameArrived>(taken.back()).dropped);
}

}  // namespace
}  // namespace orbitkv::manager
