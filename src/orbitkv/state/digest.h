// SHA-256 over named fields: what every identity of a block is made of.
// A builder starts with a domain, so that digests of different kinds never meet, and frames each field with a type, the
// length of its name and the length of its value, so that no two lists of fields give the same stream of bytes.
// Owns: one OpenSSL digest context, freed by the destructor.
// Threads: one builder belongs to one thread. Blocks: no.
// Units: integers are hashed as 64-bit little endian, strings as their bytes.
// Errors: none; OpenSSL fails here only without memory, which ends the process.
// Invariants: the order of the fields counts; Finish is called once and nothing is added after it. The encoding is part
//             of every stored key: a change needs a new domain string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "orbitkv/state/state_key.h"

namespace orbitkv::state {

// Plain SHA-256 of a stream of bytes, without frames: for the content of files.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  Digest Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

class DigestBuilder {
 public:
  explicit DigestBuilder(std::string_view domain);

  DigestBuilder& Add(std::string_view name, std::span<const std::byte> bytes);
  DigestBuilder& Add(std::string_view name, std::string_view text);
  DigestBuilder& Add(std::string_view name, std::uint64_t number);
  // A list is framed by its count, so that an empty list differs from an absent one and items never run together.
  DigestBuilder& Add(std::string_view name, std::span<const std::string> texts);
  DigestBuilder& Add(std::string_view name, std::span<const std::uint64_t> numbers);
  Digest Finish();

 private:
  void Header(char type, std::string_view name, std::uint64_t value_bytes);
  void Number(std::uint64_t number);
  void Text(std::string_view text);

  Sha256 sha_;
};

std::string ToHex(std::span<const std::byte> bytes);

}  // namespace orbitkv::state
