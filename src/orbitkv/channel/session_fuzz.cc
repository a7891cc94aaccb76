// A hostile client, driven by the fuzzer, against the Manager's end of a session: it writes descriptors, cursors and
// arena bytes in any order, while the Manager goes on serving.
#include <cstring>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/channel/server_session.h"

using namespace orbitkv;
using namespace orbitkv::channel;

namespace {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  void Take(void* out, std::size_t bytes) {
    std::memset(out, 0, bytes);
    const std::size_t got = bytes < size_ ? bytes : size_;
    std::memcpy(out, data_, got);
    data_ += got;
    size_ -= got;
  }
  template <typename T>
  T Take() {
    T value;
    Take(&value, sizeof value);
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

void Serve(ServerSession& session, std::uint8_t how) {
  static const std::vector<std::byte> payload(20'000);
  while (const auto request = session.Next(1000)) {
    std::size_t sum = 0;
    for (const std::byte byte : request->args) sum += static_cast<std::size_t>(byte);
    const std::size_t size = how % 4 == 0 ? payload.size() : std::size_t{how};
    session.Answer(request->handle, wire::AnswerStatus::kOk, sum, 0, std::span(payload).first(size));
  }
  session.FlushWake();
  ORBITKV_CHECK(session.open_requests() == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const wire::SessionGeometry geometry{.ring_entries = 32, .slot_count = 3, .slot_bytes = 4096};
  const auto server = ServerSession::Create({.session = SessionId(5), .geometry = geometry}).value();
  const auto memory = os::Mapping::Map(server->session_fd(), geometry.total_bytes(), os::Access::kReadWrite).value();
  auto& header = *reinterpret_cast<wire::SessionHeader*>(memory.data());
  std::uint32_t head = 0;
  std::uint32_t generation = 1;
  Input input(data, size);
  while (!input.empty()) {
    const auto op = input.Take<std::uint8_t>();
    if (op < 160) {
      // A descriptor in good order but for what the input changes in it.
      auto d = input.Take<wire::Descriptor>();
      if ((op & 1U) != 0) d.magic = wire::kDescriptorMagic;
      if ((op & 1U) != 0) d.abi = wire::kAbiMax;
      if ((op & 2U) != 0) d.session_epoch = 5;
      if ((op & 4U) != 0) d.generation = generation;
      if ((op & 8U) != 0) d.deadline_ns = 5000;
      if ((op & 16U) != 0) d.op = static_cast<std::uint16_t>(1 + d.op % 12);
      std::memcpy(memory.data() + geometry.request_ring_offset() + std::size_t{head % 32} * sizeof d, &d, sizeof d);
      header.request_head = ++head;
      generation += 2;
    } else if (op < 180) {
      header.answer_tail = input.Take<std::uint32_t>();
    } else if (op < 185) {
      head += input.Take<std::uint8_t>();
      header.request_head = head;
    } else if (op < 200) {
      const auto at = input.Take<std::uint16_t>() % geometry.arena_bytes();
      memory.data()[geometry.arena_offset() + at] = input.Take<std::byte>();
    } else {
      header.answer_tail = header.answer_head.load();
    }
    Serve(*server, op);
  }
  return 0;
}
