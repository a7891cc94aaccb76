// The cache of weight hashes with entries of arbitrary bytes, whole or inside a good one: the file keeps its one hash.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "orbitkv/base/check.h"
#include "orbitkv/os/file.h"
#include "orbitkv/state/weights.h"
#include "orbitkv/testing/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using orbitkv::state::HashFile;

// One weight file and its cache, removed at the end of the program.
class World {
 public:
  World() {
    std::ofstream(root_ / "model.bin") << "weights";
    options_.cache_dir = root_ / "cache";
    hex_ = HashFile(root_ / "model.bin", options_).value().hex;
    for (const auto& file : fs::directory_iterator(root_ / "cache/weights")) {
      if (file.path().extension() != ".lock") path_ = file.path().string();
    }
    entry_ = orbitkv::os::ReadFile(path_, 4096).value();
  }

  const std::string& entry() const { return entry_; }
  // The hash under this entry, which is then the good one again.
  void Try(std::string_view entry) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << entry;
    const auto hash = HashFile(root_ / "model.bin", options_);
    ORBITKV_CHECK(hash.has_value() && hash->hex == hex_);
    ORBITKV_CHECK((hash->bytes_read == 0) == (entry == entry_));
    ORBITKV_CHECK(orbitkv::os::ReadFile(path_, 4096).value() == entry_);
  }

 private:
  const orbitkv::testing::TemporaryDirectory root_;
  orbitkv::state::WeightsOptions options_;
  std::string hex_;
  std::string path_;
  std::string entry_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  if (size == 0) return 0;
  const std::string_view given(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] == 0) {
    world.Try(given);
    return 0;
  }
  std::string entry = world.entry();
  entry.replace(std::min<std::size_t>(data[0] - 1U, entry.size()), given.size(), given);
  world.Try(entry);
  return 0;
}
