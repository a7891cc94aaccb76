#include "orbitkv/testing/local_manager.h"

#include <utility>

#include "orbitkv/base/check.h"

namespace orbitkv::testing {

LocalManager::LocalManager(const std::string& socket_path, std::uint64_t pool_bytes) {
  manager::Config config;
  config.socket = socket_path;
  config.pool_bytes = pool_bytes;
  config.keep_free_bytes = 0;
  config.lock_wait_ms = 2000;
  auto started = manager::Manager::Start(config);
  ORBITKV_CHECK(started.has_value());
  manager_ = std::move(*started);
}

LocalManager::~LocalManager() { manager_->Stop(); }

}  // namespace orbitkv::testing
