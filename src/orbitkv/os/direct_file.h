// A large file or block device that is read and written past the page cache, and that one process has for itself.
//
// Owns: the descriptor and with it the lock. Threads: any; the lock belongs to the object.
// Blocks: for the device. Units: bytes; offsets, lengths and memory are multiples of align() where direct() is true.
// Errors: Open kNotFound, kInvalid for what is neither a regular file nor a block device, kRefused with the pid of the
//         process that has it (0 when unknown); Reserve kExhausted when there is no space; kIo with errno otherwise.
// Invariant: the size never changes after Reserve.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "orbitkv/base/result.h"
#include "orbitkv/os/io_piece.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

class DirectFile {
 public:
  enum class Use : std::uint8_t {
    kReadOnly,        // no lock: somebody else may be writing
    kReadWrite,       // must exist
    kCreateIfAbsent,  // mode 0600
  };
  static Result<DirectFile> Open(const std::string& path, Use use);

  // The file has this size from now on and every byte of it has its place on the device. A block device must be large
  // enough as it is.
  Status Reserve(std::uint64_t bytes);
  // Whether every byte of it is zero. Reads what was written, which of a file that was only reserved is nothing.
  Result<bool> IsBlank() const;

  int fd() const { return fd_.get(); }
  std::uint64_t bytes() const { return bytes_; }
  bool block_device() const { return block_device_; }
  bool direct() const { return direct_; }
  std::uint32_t align() const { return align_; }

 private:
  DirectFile() = default;
  Status Lock();
  void ProbeAlign();

  UniqueFd fd_;
  std::uint64_t bytes_ = 0;
  bool block_device_ = false;
  bool direct_ = false;
  std::uint32_t align_ = 512;
};

// Reads or writes until all pieces are done; returns the bytes moved, fewer only at the end of the file. These block.
Result<std::uint64_t> ReadPieces(int fd, std::uint64_t offset, std::span<const IoPiece> pieces);
Result<std::uint64_t> WritePieces(int fd, std::uint64_t offset, std::span<const IoPiece> pieces);
// What was written before survives a loss of power.
Status SyncData(int fd);

}  // namespace orbitkv::os
