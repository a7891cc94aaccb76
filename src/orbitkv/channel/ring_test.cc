#include "orbitkv/channel/ring.h"

#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/channel/byte_buffer.h"

namespace orbitkv::channel {
namespace {

constexpr std::uint32_t kEntries = 8;

struct Ring {
  std::vector<std::byte> bytes = std::vector<std::byte>(kEntries * sizeof(wire::Descriptor));
  std::atomic<std::uint32_t> head{0};
  std::atomic<std::uint32_t> tail{0};
  RingProducer producer{bytes.data(), kEntries, &head, &tail};
  RingConsumer consumer{bytes.data(), kEntries, &head, &tail};
};

TEST(Ring, KeepsOrderAndSaysFullAndEmpty) {
  Ring ring;
  wire::Descriptor d;
  EXPECT_EQ(ring.consumer.Take(&d), Pop::kEmpty);
  for (std::uint64_t i = 0; i < kEntries; ++i) {
    d.scalar0 = i;
    EXPECT_TRUE(ring.producer.Push(d));
  }
  EXPECT_FALSE(ring.producer.Push(d));
  for (std::uint64_t i = 0; i < kEntries; ++i) {
    ASSERT_EQ(ring.consumer.Take(&d), Pop::kGot);
    EXPECT_EQ(d.scalar0, i);
  }
  EXPECT_EQ(ring.consumer.Take(&d), Pop::kEmpty);
  EXPECT_EQ(ring.producer.Free(kEntries), kEntries);
}

// Both sides in one process, so that a thread sanitizer checks the memory order of the cursors.
TEST(Ring, TwoThreadsPassEverythingUnchanged) {
  Ring ring;
  constexpr std::uint64_t kCount = 100'000;
  std::thread producer([&ring] {
    wire::Descriptor d;
    for (std::uint64_t i = 0; i < kCount; ++i) {
      d.request_id = i;
      d.scalar0 = i * 3;
      d.scalar1 = ~i;
      while (!ring.producer.Push(d)) std::this_thread::yield();
    }
  });
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    wire::Descriptor d;
    while (ring.consumer.Take(&d) != Pop::kGot) std::this_thread::yield();
    wrong += d.request_id != i || d.scalar0 != i * 3 || d.scalar1 != ~i ? 1 : 0;
  }
  producer.join();
  EXPECT_EQ(wrong, 0U);
}

TEST(Ring, CursorsWrap) {
  Ring ring;
  wire::Descriptor d;
  // Cannot run 2^32 descriptors through, so both sides begin shortly before the wrap.
  ring.head = ring.tail = 0xfffffffcU;
  RingProducer producer(ring.bytes.data(), kEntries, &ring.head, &ring.tail, 0xfffffffcU);
  RingConsumer consumer(ring.bytes.data(), kEntries, &ring.head, &ring.tail, 0xfffffffcU);
  for (std::uint64_t i = 0; i < 20; ++i) {
    d.scalar0 = i;
    ASSERT_TRUE(producer.Push(d));
    ASSERT_EQ(consumer.Take(&d), Pop::kGot);
    EXPECT_EQ(d.scalar0, i);
  }
}

TEST(Ring, CursorThatJumpsIsBrokenForTheConsumerAndFullForTheProducer) {
  Ring ring;
  wire::Descriptor d;
  ring.head = kEntries + 1;
  EXPECT_EQ(ring.consumer.Take(&d), Pop::kBroken);
  ring.head = 0xffffffffU;
  EXPECT_EQ(ring.consumer.Take(&d), Pop::kBroken);
  Ring other;
  for (std::uint32_t i = 0; i < kEntries; ++i) ASSERT_TRUE(other.producer.Push(d));
  for (const std::uint32_t tail : {kEntries + 1, 0xffffffffU, 1000U}) {
    other.tail = tail;
    EXPECT_FALSE(other.producer.Push(d)) << tail;
  }
  other.tail = 1;
  EXPECT_TRUE(other.producer.Push(d));
}

TEST(ByteBuffer, GrowsKeepsAndShrinks) {
  Prng prng(1);
  ByteBuffer buffer;
  std::vector<std::byte> model;
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> piece(prng.Below(500));
    for (auto& byte : piece) byte = static_cast<std::byte>(prng.Next());
    buffer.Append(piece);
    model.insert(model.end(), piece.begin(), piece.end());
    ASSERT_TRUE(std::equal(model.begin(), model.end(), buffer.bytes().begin(), buffer.bytes().end()));
  }
  const std::byte* before = buffer.bytes().data();
  buffer.Assign(std::span(model).first(10));
  EXPECT_EQ(buffer.bytes().data(), before);
  buffer.Shrink(0);
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.bytes().data(), nullptr);
}

}  // namespace
}  // namespace orbitkv::channel
