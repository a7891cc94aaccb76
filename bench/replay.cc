#include "replay.h"

#include <algorithm>
#include <ctime>
#include <queue>
#include <utility>
#include <vector>

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kNone = 0xffffffffU;

std::uint64_t KeyOf(std::uint32_t block) {
  std::uint64_t mixed = (std::uint64_t{block} + 1) * 0x9e3779b97f4a7c15ULL;
  mixed = (mixed ^ (mixed >> 31U)) * 0x94d049bb133111ebULL;
  return mixed ^ (mixed >> 30U);
}

std::uint64_t NsOf(const Request& request) { return static_cast<std::uint64_t>((request.at_s + 1) * 1e9); }

// The tree of prefixes with the blocks that are there; `resident` numbers are the policy's.
class Tree {
 public:
  Tree(const Trace& trace, cache::EvictionPolicy& policy, std::uint32_t capacity)
      : policy_(policy), nodes_(trace.block_count), owner_(capacity, kNone) {
    policy_.AddLane();
    for (std::uint32_t slot = capacity; slot-- > 0;) free_.push_back(slot);
  }

  // Returns the number of hits.
  std::size_t Ask(const Request& request, std::uint64_t& refused) {
    const std::uint64_t now_ns = NsOf(request);
    const auto& blocks = request.blocks;
    std::size_t matched = 0;
    while (matched < blocks.size() && nodes_[blocks[matched]].slot != kNone) ++matched;
    std::uint32_t tip = matched == 0 ? kNone : blocks[matched - 1];
    if (tip != kNone && nodes_[tip].children == 0) policy_.OnNoCandidate(nodes_[tip].slot);
    for (std::size_t at = 0; at < matched; ++at) policy_.OnTouch(nodes_[blocks[at]].slot, now_ns);
    for (std::size_t at = matched; at < blocks.size(); ++at) {
      const cache::BlockFacts facts{.key = KeyOf(blocks[at]),
                                    .last_use_ns = now_ns,
                                    .lane = 0,
                                    .depth = static_cast<std::uint32_t>(at),
                                    .parent_key = at == 0 ? 0 : KeyOf(blocks[at - 1]),
                                    .prompt_tokens = request.prompt_tokens,
                                    .answer_tokens = request.answer_tokens};
      if (free_.empty() && !EvictOne(tip)) {  // the prompt alone is longer than the cache
        refused += blocks.size() - at;
        break;
      }
      Node& node = nodes_[blocks[at]];
      node.slot = free_.back();
      free_.pop_back();
      owner_[node.slot] = blocks[at];
      node.parent = tip;
      if (tip != kNone) ++nodes_[tip].children;
      policy_.OnInsert(node.slot, facts);
      tip = blocks[at];
    }
    if (tip != kNone && nodes_[tip].children == 0) policy_.OnCandidate(nodes_[tip].slot);
    return matched;
  }

 private:
  struct Node {
    std::uint32_t slot = kNone;
    std::uint32_t parent = kNone;
    std::uint32_t children = 0;
  };

  // tip: the last block of the present request, which is pinned.
  bool EvictOne(std::uint32_t tip) {
    const auto victim = policy_.Victim(0);
    if (!victim) return false;
    Node& node = nodes_[owner_[*victim]];
    policy_.OnRemove(*victim);
    free_.push_back(*victim);
    node.slot = kNone;
    if (node.parent != kNone) {
      Node& parent = nodes_[node.parent];
      if (--parent.children == 0 && node.parent != tip) policy_.OnCandidate(parent.slot);
    }
    return true;
  }

  cache::EvictionPolicy& policy_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> owner_;  // by slot
  std::vector<std::uint32_t> free_;
};

}  // namespace

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double BlockWork(std::uint32_t depth, std::uint32_t block_tokens) {
  // A token costs as much as its attention over so many tokens before it, in a dense model of 8 G parameters with 32
  // layers of width 4096: 2 * 8e9 / (4 * 4096 * 32).
  constexpr double kTokensPerToken = 30'518;
  return 1 + (depth + 0.5) * block_tokens / kTokensPerToken;
}

ReplayResult Replay(const Trace& trace, cache::PolicyMaker make, std::uint32_t blocks) {
  const auto policy = make(blocks);
  Tree tree(trace, *policy, blocks);
  ReplayResult result{.references = trace.references()};
  std::vector<std::size_t> hits;
  hits.reserve(trace.requests.size());
  const double began_s = ProcessorSeconds();
  for (const Request& request : trace.requests) hits.push_back(tree.Ask(request, result.refused));
  Sum(trace, hits, ProcessorSeconds() - began_s, result);
  return result;
}

void Sum(const Trace& trace, const std::vector<std::size_t>& hits, double spent_s, ReplayResult& result) {
  double all = 0;
  double saved = 0;
  for (std::size_t at = 0; at < trace.requests.size(); ++at) {
    result.hits += hits[at];
    for (std::uint32_t depth = 0; depth < trace.requests[at].blocks.size(); ++depth) {
      const double work = BlockWork(depth, trace.block_tokens);
      all += work;
      if (depth < hits[at]) saved += work;
    }
  }
  const auto references = static_cast<double>(std::max<std::uint64_t>(result.references, 1));
  result.hit_ratio = static_cast<double>(result.hits) / references;
  result.saved_flops_ratio = all > 0 ? saved / all : 0;
  result.us_per_block = spent_s * 1e6 / references;
}

ReplayResult ReplayBelady(const Trace& trace, std::uint32_t blocks) {
  const double began_s = ProcessorSeconds();
  constexpr std::uint64_t kNever = ~std::uint64_t{0};
  // next[i] of the i-th reference: the request that uses the block next.
  std::vector<std::uint64_t> next(trace.references());
  std::vector<std::uint64_t> upcoming(trace.block_count, kNever);
  std::size_t at = next.size();
  for (std::size_t r = trace.requests.size(); r-- > 0;) {
    const auto& ids = trace.requests[r].blocks;
    for (std::size_t i = ids.size(); i-- > 0;) {
      next[--at] = upcoming[ids[i]];
      upcoming[ids[i]] = r;
    }
  }
  ReplayResult result{.references = next.size()};
  std::vector<std::size_t> hits;
  std::vector<std::uint64_t> due(trace.block_count, kNever);
  std::vector<bool> there(trace.block_count);
  std::priority_queue<std::pair<std::uint64_t, std::uint32_t>> furthest;  // an old entry no longer equals due
  std::uint32_t used = 0;
  at = 0;
  for (const Request& request : trace.requests) {
    std::size_t matched = 0;
    while (matched < request.blocks.size() && there[request.blocks[matched]]) ++matched;
    hits.push_back(matched);
    for (const std::uint32_t block : request.blocks) {
      due[block] = next[at++];
      furthest.emplace(due[block], block);
      if (!there[block]) ++used;
      there[block] = true;
    }
    while (used > blocks) {
      const auto [when, block] = furthest.top();
      furthest.pop();
      if (!there[block] || due[block] != when) continue;
      there[block] = false;
      --used;
    }
  }
  Sum(trace, hits, ProcessorSeconds() - began_s, result);
  return result;
}

}  // namespace orbitkv::bench
