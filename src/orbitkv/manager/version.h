// The version of this build, from the project's one place (the CMake project).
// Threads: a constant.
#pragma once

namespace orbitkv::manager {

inline constexpr const char* kVersion = ORBITKV_VERSION;

}  // namespace orbitkv::manager
