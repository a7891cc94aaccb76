#include "trace.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

namespace orbitkv::bench {
namespace {

constexpr const char* kCompactHeader = "orbitkv-trace 1";

[[noreturn]] void Refuse(const std::string& path, std::size_t line, const std::string& why) {
  throw std::runtime_error(path + ":" + std::to_string(line) + ": " + why);
}

void AddCompact(const std::string& line, Trace& trace, std::vector<std::uint32_t>& parents) {
  std::istringstream in(line);
  std::uint64_t ms = 0;
  std::int64_t shared = 0;
  std::uint32_t added = 0;
  Request request;
  if (!(in >> ms >> request.prompt_tokens >> request.answer_tokens >> shared >> added)) {
    throw std::runtime_error("five numbers were expected");
  }
  if (shared >= static_cast<std::int64_t>(parents.size()) || added > 1'000'000) {
    throw std::runtime_error("no such block");
  }
  const double before = trace.requests.empty() ? 0 : trace.requests.back().at_s;
  request.at_s = before + static_cast<double>(ms) / 1000;
  for (auto block = shared < 0 ? kNoParent : static_cast<std::uint32_t>(shared); block != kNoParent;
       block = parents[block]) {
    request.blocks.push_back(block);
  }
  std::ranges::reverse(request.blocks);
  for (std::uint32_t i = 0; i < added; ++i) {
    const auto block = static_cast<std::uint32_t>(parents.size());
    parents.push_back(request.blocks.empty() ? kNoParent : request.blocks.back());
    request.blocks.push_back(block);
  }
  trace.requests.push_back(std::move(request));
}

std::string NameOf(const std::string& path) {
  const auto slash = path.find_last_of('/');
  const std::string file = slash == std::string::npos ? path : path.substr(slash + 1);
  return file.substr(0, file.find('.'));
}

}  // namespace

std::uint64_t Trace::references() const {
  std::uint64_t total = 0;
  for (const Request& request : requests) total += request.blocks.size();
  return total;
}

struct TraceBuilder::Numbers {
  std::unordered_map<std::uint64_t, std::uint32_t> of_child;  // (block before, id) mixed
};

TraceBuilder::TraceBuilder(std::string name) : numbers_(std::make_unique<Numbers>()) { trace_.name = std::move(name); }
TraceBuilder::~TraceBuilder() = default;

void TraceBuilder::Add(double at_s, std::uint32_t prompt_tokens, std::uint32_t answer_tokens,
                       const std::vector<std::uint64_t>& ids) {
  Request request{.at_s = at_s, .prompt_tokens = prompt_tokens, .answer_tokens = answer_tokens, .blocks = {}};
  if (!trace_.requests.empty()) request.at_s = std::max(request.at_s, trace_.requests.back().at_s);
  std::uint64_t before = 0x9e3779b97f4a7c15ULL;
  for (const std::uint64_t id : ids) {
    before = (before ^ id) * 0xbf58476d1ce4e5b9ULL;
    before ^= before >> 29U;
    const auto [at, added] = numbers_->of_child.try_emplace(before, trace_.block_count);
    if (added) ++trace_.block_count;
    request.blocks.push_back(at->second);
  }
  trace_.requests.push_back(std::move(request));
}

Trace TraceBuilder::Take() { return std::move(trace_); }

Trace LoadTrace(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path + ": cannot be read");
  std::string line;
  std::size_t number = 1;
  if (!std::getline(in, line)) throw std::runtime_error(path + ": is empty");
  const bool compact = line.starts_with(kCompactHeader);
  TraceBuilder builder(NameOf(path));
  Trace trace{.name = NameOf(path), .requests = {}};
  std::vector<std::uint32_t> parents;
  try {
    if (compact) {
      while (++number, std::getline(in, line)) {
        if (!line.empty() && line.front() != '#') AddCompact(line, trace, parents);
      }
    } else {
      do {
        if (line.empty()) continue;
        const auto one = nlohmann::json::parse(line);
        builder.Add(one.at("timestamp").get<double>() / 1000, one.at("input_length"), one.at("output_length"),
                    one.at("hash_ids").get<std::vector<std::uint64_t>>());
      } while (++number, std::getline(in, line));
      trace = builder.Take();
    }
  } catch (const std::exception& error) {
    Refuse(path, number, error.what());
  }
  if (compact) trace.block_count = static_cast<std::uint32_t>(parents.size());
  return trace;
}

}  // namespace orbitkv::bench
