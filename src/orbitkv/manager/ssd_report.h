// What `orbitkv store info` and `orbitkv store check` say about a store's file.
//
// Owns: nothing that stays. Threads: one. Blocks: for the device.
// Errors: one line for people that names the file. Invariant: the file is opened for reading only; a Manager may be
// using it, and what it writes meanwhile may be counted as damaged.
#pragma once

#include <expected>
#include <string>

namespace orbitkv::manager {

struct SsdReport {
  std::string text;
  bool sound = true;
};

// check: reads and hashes every record.
std::expected<SsdReport, std::string> ReportOnStore(const std::string& path, bool check);

}  // namespace orbitkv::manager
