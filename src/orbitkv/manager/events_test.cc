#include "orbitkv/manager/events.h"

#include <gtest/gtest.h>

namespace orbitkv::manager {
namespace {

FrameArrived FrameOf(std::size_t bytes) {
  return {.session = SessionId(1), .frame_id = 1, .kind = 1, .payload = std::vector<std::byte>(bytes)};
}

TEST(EventQueue, FramesAreBoundedInNumberAndBytesAndTheRestIsNot) {
  EventQueue queue;
  for (std::size_t i = 0; i < EventQueue::kMaxFrames; ++i) ASSERT_TRUE(queue.Post(FrameOf(0)));
  EXPECT_FALSE(queue.Post(FrameOf(0)));
  EXPECT_TRUE(queue.Post(SessionDied{SessionId(1)}));
  std::vector<Event> taken;
  queue.Take(taken);
  EXPECT_EQ(taken.size(), EventQueue::kMaxFrames + 1);
  constexpr std::size_t kPiece = std::size_t{16} << 20U;
  for (std::size_t i = 0; i < EventQueue::kMaxFrameBytes / kPiece; ++i) ASSERT_TRUE(queue.Post(FrameOf(kPiece)));
  EXPECT_FALSE(queue.Post(FrameOf(1)));
  EXPECT_EQ(queue.dropped_frames(), 2U);
  queue.Take(taken);
  EXPECT_TRUE(queue.Post(FrameOf(kPiece)));
}

}  // namespace
}  // namespace orbitkv::manager
