#include "bindings.h"

NB_MODULE(_native, module) {
  // A client that nobody closed at exit is no news: the process ends, and the Manager sees that.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = ORBITKV_VERSION;
  orbitkv::python::AddErrors(module);
  orbitkv::python::AddContract(module);
  orbitkv::python::AddHashes(module);
  orbitkv::python::AddClient(module);
  orbitkv::python::AddState(module);
  orbitkv::python::AddStatus(module);
}
