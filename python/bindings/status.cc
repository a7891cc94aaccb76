#include <nanobind/stl/string.h>

#include "bindings.h"

#include "orbitkv/client/registration.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::python {
namespace {

nb::dict Status(const std::string& socket, double timeout_s) {
  if (!(timeout_s >= 0 && timeout_s <= 3600)) throw InvalidArgument("timeout_s must be 0 to 3600");
  const auto health = [&] {
    const nb::gil_scoped_release release;
    return client::AskHealth(socket, os::DeadlineAfter(static_cast<std::uint64_t>(timeout_s * 1e9)));
  }();
  if (!health) {
    throw UnavailableError("no Manager answers at " + socket + ": " + Message(health.error()) +
                           "; start orbitkv-manager --socket " + socket);
  }
  nb::dict samples;
  for (const auto& [name, value] : health->samples) samples[name.c_str()] = value;
  nb::dict status;
  status["version"] = health->version;
  status["pid"] = health->pid;
  status["incarnation"] = nb::bytes(health->incarnation.data(), health->incarnation.size());
  status["uptime_seconds"] = health->uptime_seconds;
  status["samples"] = samples;
  return status;
}

}  // namespace

void AddStatus(nb::module_& module) { module.def("status", &Status, nb::arg("socket"), nb::arg("timeout_s") = 2.0); }

}  // namespace orbitkv::python
