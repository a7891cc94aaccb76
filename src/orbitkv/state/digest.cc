#include "orbitkv/state/digest.h"

#include <openssl/evp.h>

#include "orbitkv/base/check.h"

namespace orbitkv::state {

struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new()) {
    ORBITKV_CHECK(evp != nullptr);
    ORBITKV_CHECK(EVP_DigestInit_ex(evp, EVP_sha256(), nullptr) == 1);
  }
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  EVP_MD_CTX* evp;
  bool finished = false;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  ORBITKV_CHECK(!context_->finished);
  ORBITKV_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

Digest Sha256::Finish() {
  ORBITKV_CHECK(!context_->finished);
  context_->finished = true;
  std::array<unsigned char, 32> raw{};
  unsigned int length = 0;
  ORBITKV_CHECK(EVP_DigestFinal_ex(context_->evp, raw.data(), &length) == 1 && length == raw.size());
  Digest digest{};
  for (std::size_t i = 0; i < raw.size(); ++i) digest[i] = std::byte{raw[i]};
  return digest;
}

DigestBuilder::DigestBuilder(std::string_view domain) {
  Text("orbitkv.digest.1");
  Number(domain.size());
  Text(domain);
}

DigestBuilder& DigestBuilder::Add(std::string_view name, std::span<const std::byte> bytes) {
  Header('b', name, bytes.size());
  sha_.Update(bytes);
  return *this;
}

DigestBuilder& DigestBuilder::Add(std::string_view name, std::string_view text) {
  Header('t', name, text.size());
  Text(text);
  return *this;
}

DigestBuilder& DigestBuilder::Add(std::string_view name, std::uint64_t number) {
  Header('n', name, sizeof(number));
  Number(number);
  return *this;
}

DigestBuilder& DigestBuilder::Add(std::string_view name, std::span<const std::string> texts) {
  Header('T', name, texts.size());
  for (const std::string& text : texts) {
    Number(text.size());
    Text(text);
  }
  return *this;
}

DigestBuilder& DigestBuilder::Add(std::string_view name, std::span<const std::uint64_t> numbers) {
  Header('N', name, numbers.size());
  for (const std::uint64_t number : numbers) Number(number);
  return *this;
}

Digest DigestBuilder::Finish() { return sha_.Finish(); }

void DigestBuilder::Header(char type, std::string_view name, std::uint64_t value_bytes) {
  Text(std::string_view(&type, 1));
  Number(name.size());
  Text(name);
  Number(value_bytes);
}

void DigestBuilder::Number(std::uint64_t number) {
  std::array<std::byte, sizeof(number)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte{static_cast<unsigned char>(number >> (8 * i))};
  sha_.Update(bytes);
}

void DigestBuilder::Text(std::string_view text) { sha_.Update(std::as_bytes(std::span(text))); }

std::string ToHex(std::span<const std::byte> bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const std::byte b : bytes) {
    const auto value = std::to_integer<unsigned>(b);
    hex.push_back(kDigits[value >> 4U]);
    hex.push_back(kDigits[value & 15U]);
  }
  return hex;
}

}  // namespace orbitkv::state
