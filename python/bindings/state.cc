#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

#include "orbitkv/state/digest.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/state/weights.h"

namespace orbitkv::python {
namespace {

// Ends a long call from another thread.
struct CancelToken {
  std::atomic<bool> cancelled{false};
};

nb::bytes ToBytes(const state::Digest& digest) { return nb::bytes(digest.data(), digest.size()); }

class PyDigestBuilder {
 public:
  explicit PyDigestBuilder(const std::string& domain) : builder_(domain) {}

  void Add(const std::string& name, nb::handle value) {
    if (finished_) throw InvalidArgument("the digest is finished; start another builder");
    if (value.is_none()) {
      builder_.Add(name + " is none", std::uint64_t{0});
    } else if (nb::isinstance<nb::bytes>(value)) {
      const auto bytes = nb::borrow<nb::bytes>(value);
      builder_.Add(name, std::as_bytes(std::span(bytes.c_str(), bytes.size())));
    } else if (nb::isinstance<nb::str>(value)) {
      builder_.Add(name, std::string_view(nb::cast<std::string>(value)));
    } else if (PyBool_Check(value.ptr())) {
      builder_.Add(name + " is bool", std::uint64_t{value.ptr() == Py_True});
    } else if (nb::isinstance<nb::int_>(value)) {
      std::uint64_t number = 0;
      if (!nb::try_cast(value, number)) throw InvalidArgument(name + " must be 0 to 2^64-1");
      builder_.Add(name, number);
    } else {
      throw InvalidArgument(name + " must be bytes, str, int, bool or None");
    }
  }
  nb::bytes Finish() {
    if (finished_) throw InvalidArgument("the digest is finished; start another builder");
    finished_ = true;
    return ToBytes(builder_.Finish());
  }

 private:
  state::DigestBuilder builder_;
  bool finished_ = false;
};

// Reads each named field of a mapping into its place; all names must be there and no other.
class Fields {
 public:
  explicit Fields(const nb::dict& source) : source_(source) {}

  Fields& Text(const char* name, std::string& out) { return Read(name, out, "str"); }
  Fields& Number(const char* name, std::uint64_t& out) { return Read(name, out, "an int from 0"); }
  Fields& Texts(const char* name, std::vector<std::string>& out) { return Read(name, out, "a list of str"); }
  Fields& Numbers(const char* name, std::vector<std::uint64_t>& out) { return Read(name, out, "a list of int"); }
  Fields& Bytes(const char* name, std::vector<std::byte>& out) {
    const nb::object value = Take(name);
    if (!nb::isinstance<nb::bytes>(value)) throw InvalidArgument(std::string(name) + " must be bytes");
    const auto bytes = nb::borrow<nb::bytes>(value);
    const auto span = std::as_bytes(std::span(bytes.c_str(), bytes.size()));
    out.assign(span.begin(), span.end());
    return *this;
  }
  void Done() const {
    if (taken_ == nb::len(source_)) return;
    for (const auto item : source_.keys()) {
      const auto name = nb::cast<std::string>(item);
      if (!names_.contains(name)) throw InvalidArgument("unknown field " + name + "; leave it out");
    }
  }

 private:
  nb::object Take(const char* name) {
    if (!source_.contains(name)) throw InvalidArgument(std::string("field ") + name + " is missing");
    ++taken_;
    names_[name] = true;
    return source_[name];
  }
  template <typename T>
  Fields& Read(const char* name, T& out, const char* kind) {
    if (!nb::try_cast(Take(name), out)) throw InvalidArgument(std::string(name) + " must be " + kind);
    return *this;
  }
  nb::dict source_;
  std::map<std::string, bool> names_;
  std::size_t taken_ = 0;
};

nb::bytes ComputationDigestOf(const nb::dict& source) {
  state::ComputationIdentity id;
  Fields fields(source);
  fields.Text("weights", id.weights).Text("model_config", id.model_config).Text("rope_scaling", id.rope_scaling);
  fields.Number("sliding_window", id.sliding_window).Number("long_rope_length", id.long_rope_length);
  fields.Text("dtype", id.dtype).Text("quantization", id.quantization).Text("engine", id.engine);
  fields.Text("engine_version", id.engine_version).Text("cache_dtype", id.cache_dtype);
  fields.Texts("skipped_layers", id.skipped_layers).Text("hash_algorithm", id.hash_algorithm);
  fields.Bytes("seed_probe", id.seed_probe).Number("block_tokens", id.block_tokens);
  fields.Number("hash_block_tokens", id.hash_block_tokens).Number("hit_alignment_tokens", id.hit_alignment_tokens);
  fields.Number("tensor_parallel", id.tensor_parallel).Number("pipeline_parallel", id.pipeline_parallel);
  fields.Numbers("pipeline_split", id.pipeline_split);
  fields.Number("decode_context_parallel", id.decode_context_parallel);
  fields.Number("prefill_context_parallel", id.prefill_context_parallel).Text("drafter", id.drafter);
  fields.Done();
  OrThrow(id.Validate());
  return ToBytes(state::ComputationDigest(id));
}

nb::bytes RepresentationDigestOf(const nb::dict& source) {
  state::RepresentationIdentity id;
  Fields fields(source);
  fields.Number("page_bytes", id.page_bytes).Number("layer_count", id.layer_count).Text("order", id.order);
  fields.Numbers("page_shape", id.page_shape).Numbers("page_strides", id.page_strides);
  fields.Text("spec_kind", id.spec_kind).Text("dtype", id.dtype).Text("attention_backend", id.attention_backend);
  fields.Text("instruction_set", id.instruction_set).Number("page_tokens", id.page_tokens);
  fields.Done();
  OrThrow(id.Validate());
  return ToBytes(state::RepresentationDigest(id));
}

std::string IdentifyWeights(const std::string& path, const std::string& load_format, const std::string& model_id,
                            const CancelToken* cancel) {
  state::WeightsOptions options;
  options.path = path;
  options.load_format = load_format;
  options.model_id = model_id;
  if (cancel != nullptr) options.cancel = &cancel->cancelled;
  const nb::gil_scoped_release release;
  return ValueOrThrow(state::IdentifyWeights(options)).text;
}

}  // namespace

void AddState(nb::module_& module) {
  nb::class_<CancelToken>(module, "CancelToken")
      .def(nb::init<>())
      .def("cancel", [](CancelToken& token) { token.cancelled.store(true); })
      .def_prop_ro("cancelled", [](const CancelToken& token) { return token.cancelled.load(); });
  nb::class_<PyDigestBuilder>(module, "DigestBuilder")
      .def(nb::init<const std::string&>(), nb::arg("domain"))
      .def(
          "add",
          [](PyDigestBuilder& builder, const std::string& name, nb::handle value) -> PyDigestBuilder& {
            builder.Add(name, value);
            return builder;
          },
          nb::arg("name"), nb::arg("value").none(), nb::rv_policy::reference)
      .def("digest", &PyDigestBuilder::Finish);
  module.def("computation_digest", &ComputationDigestOf, nb::arg("fields"));
  module.def("representation_digest", &RepresentationDigestOf, nb::arg("fields"));
  module.def("identify_weights", &IdentifyWeights, nb::arg("path"), nb::kw_only(), nb::arg("load_format") = "",
             nb::arg("model_id") = "", nb::arg("cancel").none() = nb::none());
}

}  // namespace orbitkv::python
