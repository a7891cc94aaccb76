#include "hashes.h"

#include <string>
#include <tuple>

#include "bindings.h"

namespace orbitkv::python {

BlockHashes::BlockHashes(nb::handle data, int hash_bytes) : storage_(std::make_shared<Storage>()) {
  if (hash_bytes < 1 || hash_bytes > static_cast<int>(state::kDigestBytes)) {
    throw InvalidArgument("hash_bytes must be 1 to 32, not " + std::to_string(hash_bytes));
  }
  hash_bytes_ = static_cast<std::size_t>(hash_bytes);
  if (nb::isinstance<nb::bytes>(data)) {
    const auto bytes = nb::borrow<nb::bytes>(data);
    if (bytes.size() % hash_bytes_ != 0) {
      throw InvalidArgument("hashes of " + std::to_string(hash_bytes_) + " bytes need a multiple of it, not " +
                            std::to_string(bytes.size()) + " bytes; hash_bytes names another length");
    }
    storage_->reserve(bytes.size() / hash_bytes_);
    for (std::size_t at = 0; at < bytes.size(); at += hash_bytes_) Append(bytes.c_str() + at, hash_bytes_);
    count_ = storage_->size();
  } else {
    Extend(data);
  }
}

void BlockHashes::Append(const char* data, std::size_t bytes) {
  storage_->push_back(state::BlockHash::From(std::as_bytes(std::span(data, bytes))));
}

BlockHashes BlockHashes::Slice(const nb::slice& slice) const {
  const auto [start, stop, step, length] = slice.compute(count_);
  std::ignore = stop;
  if (step != 1) throw InvalidArgument("hashes are sliced with step 1 only");
  return {storage_, first_ + static_cast<std::size_t>(start), length, hash_bytes_};
}

nb::bytes BlockHashes::At(std::ptrdiff_t index) const {
  const auto size = static_cast<std::ptrdiff_t>(count_);
  if (index < 0) index += size;
  if (index < 0 || index >= size) throw nb::index_error("hash index out of range");
  const state::BlockHash& hash = (*storage_)[first_ + static_cast<std::size_t>(index)];
  return nb::bytes(hash.bytes.data(), hash_bytes_);
}

void BlockHashes::Extend(nb::handle items) {
  if (nb::isinstance<nb::bytes>(items)) throw InvalidArgument("extend takes a list of hashes, each of them bytes");
  // Others hold the memory: they keep theirs.
  if (storage_.use_count() > 1 || first_ + count_ != storage_->size()) {
    const auto mine = span();
    storage_ = std::make_shared<Storage>(mine.begin(), mine.end());
    first_ = 0;
  }
  const std::size_t before = storage_->size();
  for (const nb::handle item : items) {
    if (!nb::isinstance<nb::bytes>(item) || nb::len(item) != hash_bytes_) {
      storage_->resize(before);
      throw InvalidArgument("each hash must be bytes of length " + std::to_string(hash_bytes_));
    }
    Append(nb::borrow<nb::bytes>(item).c_str(), hash_bytes_);
  }
  count_ += storage_->size() - before;
}

void AddHashes(nb::module_& module) {
  nb::class_<BlockHashes>(module, "BlockHashes")
      .def(nb::init<nb::handle, int>(), nb::arg("data"), nb::arg("hash_bytes") = 32)
      .def("__len__", &BlockHashes::size)
      .def("__getitem__", &BlockHashes::Slice, nb::arg("key"))
      .def("__getitem__", &BlockHashes::At, nb::arg("key"))
      .def("extend", &BlockHashes::Extend, nb::arg("items"));
}

}  // namespace orbitkv::python
