// What a transfer backend can do: carry out single operations between memory and one far side, many at once. The rules
// that hold for all backends (regions, batches, deadlines, cancelling) lie above it, in engine.h.
//
// Owns: its connections to the far side, not the memory. Threads: one, that of the engine above it.
// Blocks: never. How its owner waits until Reap has something is the backend's own (an eventfd, a virtual clock).
// Units: bytes. Errors: an operation's own come with its outcome.
// Invariant: each operation for which Start answered true has one outcome; until then its pieces, and the memory they
//            name, stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/os/io_piece.h"

namespace orbitkv::orbite {

enum class OperationKind : std::uint8_t {
  kRead,   // from the far side into memory
  kWrite,  // from memory to the far side
  kSync,   // what was written before outlives a loss of power
};

struct Operation {
  std::uint64_t token = 0;
  OperationKind kind = OperationKind::kRead;
  std::uint32_t far = 0;  // which file, in the backend's own numbers
  std::uint64_t offset = 0;
  std::span<const os::IoPiece> pieces;
};

struct Outcome {
  std::uint64_t token = 0;
  int sys_errno = 0;
  std::uint64_t bytes = 0;  // moved
};

class Port {
 public:
  virtual ~Port() = default;
  // False when so many operations are under way that it takes no more now.
  virtual bool Start(const Operation& operation) = 0;
  // What was started is under way when this returns.
  virtual void Flush() = 0;
  virtual void Reap(std::vector<Outcome>& out) = 0;
  // A hint: this memory will be used often.
  virtual void Pin(std::span<std::byte> /*memory*/) {}
};

}  // namespace orbitkv::orbite
