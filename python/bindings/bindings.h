// The pieces of the extension module orbitkv._native: each function adds its classes and functions to the module.
// Owns: nothing. Threads: called once, at import. Blocks: no.
// Errors: C++ errors become the exceptions below, with one line that names the remedy.
#pragma once

#include <cstdint>
#include <nanobind/nanobind.h>
#include <stdexcept>
#include <string>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/state/contract.h"

namespace orbitkv::python {

namespace nb = nanobind;

struct ApiError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct InvalidArgument : ApiError {
  using ApiError::ApiError;
};
struct LayoutError : ApiError {
  using ApiError::ApiError;
};
struct ForkedError : ApiError {
  using ApiError::ApiError;
};
struct UnavailableError : ApiError {
  using ApiError::ApiError;
};

void AddContract(nb::module_& module);
void AddErrors(nb::module_& module);
void AddHashes(nb::module_& module);
void AddClient(nb::module_& module);
void AddState(nb::module_& module);
void AddStatus(nb::module_& module);

// The text of an error and its numbers, on one line.
std::string Message(const Error& error);
[[noreturn]] void Throw(const Error& error);

template <typename T>
T ValueOrThrow(Result<T> result) {
  if (!result) Throw(result.error());
  return std::move(*result);
}
inline void OrThrow(const Status& status) {
  if (!status) Throw(status.error());
}

// A sequence of numbers, or a one-dimensional contiguous array of 32 or 64 bit integers.
std::vector<std::uint32_t> Numbers(nb::handle source, const char* what);

template <typename T>
T Attribute(nb::handle object, const char* name, const char* kind) {
  T value{};
  if (!nb::try_cast(object.attr(name), value)) throw InvalidArgument(std::string(name) + " must be " + kind);
  return value;
}

// The rule of an orbitkv.Group; its bytes are not known.
state::GroupRule RuleOf(nb::handle group);

}  // namespace orbitkv::python
