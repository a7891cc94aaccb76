#include <cstring>

#include "bindings.h"

namespace orbitkv::python {
namespace {

// Releases the view of a Python buffer.
class BufferView {
 public:
  explicit BufferView(nb::handle source) {
    valid_ = PyObject_GetBuffer(source.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0;
    if (!valid_) PyErr_Clear();
  }
  ~BufferView() {
    if (valid_) PyBuffer_Release(&view_);
  }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  bool valid() const { return valid_; }
  const Py_buffer& view() const { return view_; }

 private:
  Py_buffer view_{};
  bool valid_ = false;
};

std::uint32_t Checked(long long value, const char* what) {
  if (value < 0 || value > 0xffffffffLL) {
    throw InvalidArgument(std::string(what) + " must be numbers from 0 to 2^32-1, not " + std::to_string(value));
  }
  return static_cast<std::uint32_t>(value);
}

template <typename T>
std::vector<std::uint32_t> FromArray(const Py_buffer& view, const char* what) {
  const auto count = static_cast<std::size_t>(view.len) / sizeof(T);
  std::vector<std::uint32_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(view.buf) + i * sizeof(T), sizeof(T));
    numbers[i] = Checked(static_cast<long long>(value), what);
  }
  return numbers;
}

std::vector<std::uint32_t> FromBuffer(const Py_buffer& view, const char* what) {
  const std::string format = view.format != nullptr ? view.format : "B";
  const bool integers = format.size() == 1 && std::strchr("iIlLqQ", format[0]) != nullptr;
  if (view.ndim != 1 || !integers) {
    throw InvalidArgument(std::string(what) + " must be a one-dimensional array of 32 or 64 bit integers");
  }
  if (view.itemsize == 4) {
    return format == "I" || format == "L" ? FromArray<std::uint32_t>(view, what) : FromArray<std::int32_t>(view, what);
  }
  return FromArray<std::int64_t>(view, what);
}

}  // namespace

std::string Message(const Error& error) {
  std::string text = error.text;
  if (error.b != 0) {
    text += " (" + std::to_string(error.a) + ", " + std::to_string(error.b) + ")";
  } else if (error.a != 0) {
    text += " (" + std::to_string(error.a) + ")";
  }
  if (error.sys_errno != 0) text += std::string(": ") + std::strerror(error.sys_errno);
  return text;
}

void Throw(const Error& error) {
  const std::string text = Message(error);
  switch (error.code) {
    case Code::kInvalid: throw InvalidArgument(text);
    case Code::kCancelled:
    case Code::kUnavailable:
    case Code::kTimedOut: throw UnavailableError(text);
    default: throw ApiError(text);
  }
}

std::vector<std::uint32_t> Numbers(nb::handle source, const char* what) {
  if (PyObject_CheckBuffer(source.ptr()) != 0 && !nb::isinstance<nb::bytes>(source)) {
    const BufferView buffer(source);
    if (!buffer.valid()) throw InvalidArgument(std::string(what) + " must be a contiguous array");
    return FromBuffer(buffer.view(), what);
  }
  const nb::object fast = nb::steal(PySequence_Fast(source.ptr(), "a sequence of numbers is needed"));
  if (!fast.is_valid()) {
    PyErr_Clear();
    throw InvalidArgument(std::string(what) + " must be a sequence of numbers or an array");
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
  std::vector<std::uint32_t> numbers;
  numbers.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long long value = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.ptr(), i));
    if (value == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      throw InvalidArgument(std::string(what) + " must be numbers");
    }
    numbers.push_back(Checked(value, what));
  }
  return numbers;
}

void AddErrors(nb::module_& module) {
  // The most derived ones last: translators are tried from the last to the first.
  const auto error = nb::exception<ApiError>(module, "Error");
  const auto add = [&](nb::handle type) { type.attr("__module__") = "orbitkv"; };
  add(error);
  add(nb::exception<InvalidArgument>(module, "InvalidArgument", error.ptr()));
  add(nb::exception<LayoutError>(module, "LayoutError", error.ptr()));
  add(nb::exception<ForkedError>(module, "ForkedError", error.ptr()));
  add(nb::exception<UnavailableError>(module, "UnavailableError", error.ptr()));
}

}  // namespace orbitkv::python
