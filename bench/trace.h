// Request traces: who asked when for which prompt. A prompt is a chain of blocks; equal ids are equal prefixes.
//
// Two forms are read. JSON lines, one object per request: timestamp (ms since the start), input_length and
// output_length (tokens), hash_ids (one id per block of the prompt, in order). And a compact one: after a line
// "orbitkv-trace 1", one line per request with five numbers: ms since the request before, input_length, output_length,
// the last block that the prompt shares with earlier ones (-1 for none), and how many new blocks follow it. Blocks are
// numbered as they come.
// Owns: what Load returns. Threads: any. Blocks: on the file.
// Errors: std::runtime_error that names the file and line.
// Invariants: ids are below block_count, each block has one parent, times do not go back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace orbitkv::bench {

inline constexpr std::uint32_t kNoParent = 0xffffffffU;

struct Request {
  double at_s = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t answer_tokens = 0;
  std::vector<std::uint32_t> blocks;
};

struct Trace {
  std::string name;
  std::vector<Request> requests;
  std::uint32_t block_count = 0;  // different blocks
  std::uint32_t block_tokens = 512;
  std::uint64_t references() const;
};

Trace LoadTrace(const std::string& path);

// Numbers a trace's blocks by their prefix in the order of first use, so that each has one parent.
class TraceBuilder {
 public:
  explicit TraceBuilder(std::string name);
  ~TraceBuilder();
  // ids: any numbers, of which equal ones at equal prefixes are equal blocks.
  void Add(double at_s, std::uint32_t prompt_tokens, std::uint32_t answer_tokens,
           const std::vector<std::uint64_t>& ids);
  Trace Take();

 private:
  struct Numbers;
  Trace trace_;
  std::unique_ptr<Numbers> numbers_;
};

}  // namespace orbitkv::bench
