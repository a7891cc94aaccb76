#include <array>
#include <utility>

#include "orbitkv/orbite/file/file_port.h"
#include "orbitkv/os/io_ring.h"

namespace orbitkv::orbite {
namespace {

class RingPort final : public Port {
 public:
  RingPort(os::IoRing ring, std::vector<int> fds) : ring_(std::move(ring)), fds_(std::move(fds)) {}

  bool Start(const Operation& operation) override {
    os::IoRing::Op op = os::IoRing::Op::kRead;
    if (operation.kind == OperationKind::kWrite) op = os::IoRing::Op::kWrite;
    if (operation.kind == OperationKind::kSync) op = os::IoRing::Op::kSync;
    return ring_.Push({op, fds_[operation.far], operation.offset, operation.pieces, operation.token});
  }

  // What the kernel does not take now it is offered again with the next poll.
  void Flush() override { static_cast<void>(ring_.Submit()); }

  void Reap(std::vector<Outcome>& out) override {
    std::array<os::IoRing::Completion, 64> done;
    for (std::size_t count = done.size(); count == done.size();) {
      count = ring_.Reap(done);
      for (std::size_t i = 0; i < count; ++i) {
        const std::int32_t result = done[i].result;
        out.push_back({done[i].token, result < 0 ? -result : 0, result < 0 ? 0U : static_cast<std::uint64_t>(result)});
      }
    }
  }

  void Pin(std::span<std::byte> memory) override { static_cast<void>(ring_.RegisterBuffer(memory)); }

 private:
  os::IoRing ring_;
  const std::vector<int> fds_;
};

}  // namespace

Result<std::unique_ptr<Port>> MakeRingPort(const FilePortOptions& options) {
  ORBITKV_ASSIGN_OR_RETURN(os::IoRing ring, os::IoRing::Create(options.operations, options.event_fd));
  return std::make_unique<RingPort>(std::move(ring), options.fds);
}

}  // namespace orbitkv::orbite
