#include "orbitkv/orbite/file/file_port.h"

namespace orbitkv::orbite {

Result<std::unique_ptr<Port>> MakeFilePort(const FilePortOptions& options, bool* used_ring) {
  auto ring = MakeRingPort(options);
  if (used_ring != nullptr) *used_ring = ring.has_value();
  if (ring || ring.error().code != Code::kUnsupported) return ring;
  return MakeThreadPort(options);
}

}  // namespace orbitkv::orbite
