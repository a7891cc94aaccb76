// The default policy: the candidate goes whose class and age have the lowest index of the reuse model.
//
// Candidates of one lane, class and bin of ages lie in one list, a cell. All of a cell are worth the same, so the
// victim is in the cell with the lowest index, which a tree of minima over the cells knows. Blocks get older while
// nothing happens to them; each call looks at some cells and moves what has outgrown its bin, and a victim's age is
// looked at again before it goes. Within a cell the oldest goes first, and of one prompt's blocks, which were used at
// the same time, the one that became a candidate last: so a prompt that begins to go goes on going, from its end.
#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/policies.h"
#include "orbitkv/cache/reuse_model.h"
#include "orbitkv/cache/touch_history.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint32_t kNone = 0xffffffffU;
constexpr std::uint32_t kCells = ReuseModel::kClasses * ReuseModel::kBins;
constexpr std::uint32_t kLeaves = std::bit_ceil(kCells);
constexpr float kEmpty = std::numeric_limits<float>::infinity();

constexpr std::uint32_t kSharedChildren = 4;  // a block that so many different blocks follow is shared by prompts
constexpr std::uint32_t kPaceParts = 8;       // of a bin
constexpr std::uint32_t kPaceWeight = 7;      // of the pace so far, against the newest age
static_assert(ReuseModel::kBins * kPaceParts <= 256);
constexpr std::uint32_t kSameRequestTicks = 30;  // half a second: repeated uses by one request
constexpr std::uint32_t kMinHistory = 65'536;    // uses that are remembered also when the cache is small
constexpr std::uint32_t kUsesPerRefreshStep = 8;
constexpr std::uint32_t kFadesPerHistory = 4;
constexpr std::uint32_t kCellsPerCall = 4;
constexpr std::uint32_t kMovesPerCell = 32;
constexpr std::uint32_t kMovesPerVictim = 64;

// Minima over the cells of one lane. Node 1 is the root, the leaves begin at kLeaves.
class MinimumTree {
 public:
  MinimumTree() : nodes_(2 * kLeaves, kEmpty) {}
  float operator[](std::uint32_t leaf) const { return nodes_[kLeaves + leaf]; }
  bool empty() const { return nodes_[1] == kEmpty; }

  void Set(std::uint32_t leaf, float value) {
    std::uint32_t node = kLeaves + leaf;
    nodes_[node] = value;
    while (node > 1) {
      node /= 2;
      const float least = std::min(nodes_[2 * node], nodes_[2 * node + 1]);
      if (nodes_[node] == least) return;
      nodes_[node] = least;
    }
  }

  std::uint32_t Least() const {
    std::uint32_t node = 1;
    while (node < kLeaves) node = 2 * node + (nodes_[2 * node] == nodes_[node] ? 0 : 1);
    return node - kLeaves;
  }

 private:
  std::vector<float> nodes_;
};

class ReusePolicy final : public EvictionPolicy {
 public:
  explicit ReusePolicy(std::uint32_t max_blocks)
      : history_(std::max(max_blocks, kMinHistory), model_), blocks_(max_blocks) {}

  void AddLane() override {
    ORBITKV_CHECK(lanes_.size() < std::numeric_limits<std::uint16_t>::max());
    lanes_.emplace_back();
  }

  void OnInsert(std::uint32_t block, const BlockFacts& facts) override {
    ORBITKV_CHECK(block < blocks_.size() && facts.lane < lanes_.size());
    AdvanceTo(facts.last_use_ns);
    TouchHistory::Use use{.key = facts.key, .touched = now_};
    if (const TouchHistory::Use* before = history_.Find(facts.key)) {
      Continue(*before, use);
    } else {
      TouchHistory::Use* parent = facts.depth == 0 ? nullptr : history_.Find(facts.parent_key);
      use.turn = facts.awaited ? 2 : 1;  // what is brought back was in an earlier request
      if (parent != nullptr) {
        if (parent->children < 0xff) ++parent->children;
        if (!IsShared(*parent)) use.turn = HasPace(*parent) ? ReuseModel::kTurns : std::max(use.turn, parent->turn);
      }
      use.cls = ReuseModel::BroughtClass(use.turn, facts.prompt_tokens, facts.answer_tokens);
    }
    if (facts.awaited) use.cls = ReuseModel::AwaitedClass(HasPace(use));
    blocks_[block] =
        Block{.key = facts.key, .touched = now_, .lane = static_cast<std::uint16_t>(facts.lane), .cls = use.cls};
    Remember(use);
  }

  void OnTouch(std::uint32_t block, std::uint64_t now_ns) override {
    AdvanceTo(now_ns);
    Block& touched = blocks_[block];
    TouchHistory::Use use{.key = touched.key, .touched = now_};
    if (const TouchHistory::Use* before = history_.Find(touched.key)) {
      Continue(*before, use);
    } else {
      use.turn = 2;
      use.cls = ReuseModel::FoundClass(use.turn);
    }
    const bool candidate = touched.cell != kNoCell;
    if (candidate) TakeOut(block);
    touched.touched = now_;
    touched.cls = use.cls;
    if (candidate) PutIn(block);
    Remember(use);
  }

  void OnCandidate(std::uint32_t block) override {
    ORBITKV_CHECK(blocks_[block].cell == kNoCell);
    PutIn(block);
  }
  void OnNoCandidate(std::uint32_t block) override {
    ORBITKV_CHECK(blocks_[block].cell != kNoCell);
    TakeOut(block);
  }
  void OnRemove(std::uint32_t block) override {
    if (blocks_[block].cell != kNoCell) TakeOut(block);
  }

  std::optional<std::uint32_t> Victim(std::uint32_t lane) override {
    Lane& from = lanes_[lane];
    if (from.minima.empty()) return std::nullopt;
    std::uint32_t cell = from.minima.Least();
    for (std::uint32_t move = 0; move < kMovesPerVictim && HasOutgrown(from, cell); ++move) {
      Move(from.cells[cell].head);
      cell = from.minima.Least();
    }
    return from.cells[cell].head;
  }

 private:
  static constexpr std::uint16_t kNoCell = 0xffff;
  static_assert(kCells < kNoCell);

  struct Block {
    std::uint64_t key = 0;
    Ticks touched = 0;
    std::uint32_t prev = kNone;
    std::uint32_t next = kNone;
    std::uint16_t lane = 0;
    std::uint16_t cell = kNoCell;  // of its lane, while it is a candidate
    std::uint8_t cls = 0;
  };
  static_assert(sizeof(Block) + sizeof(TouchHistory::Use) + TouchHistory::kTableBytesPerUse <= 64);

  struct Cell {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
  };
  struct Lane {
    std::vector<Cell> cells = std::vector<Cell>(kCells);
    MinimumTree minima;
  };

  static bool IsShared(const TouchHistory::Use& use) { return use.children >= kSharedChildren; }
  static bool HasPace(const TouchHistory::Use& use) { return ReuseModel::HasPace(use.cls); }

  // A use by a request that found the block, or brought it back. The use that it was brought for is the same one.
  void Continue(const TouchHistory::Use& before, TouchHistory::Use& use) const {
    use.children = before.children;
    const Ticks age = now_ - before.touched;
    const bool awaited = ReuseModel::IsAwaited(before.cls);
    const std::uint32_t turn = before.turn + (awaited || age < kSameRequestTicks ? 0U : 1U);
    if (!IsShared(use) && !HasPace(before) && turn <= ReuseModel::kTurns) {
      use.turn = static_cast<std::uint8_t>(turn);
      use.cls = ReuseModel::FoundClass(turn);
      return;
    }
    // A moving average over bins, which grow geometrically, so that one long pause does not count for much.
    std::uint32_t pace = model_.BinOf(age) * kPaceParts;
    if (HasPace(before)) pace = awaited ? before.turn : (kPaceWeight * before.turn + pace) / (kPaceWeight + 1);
    use.turn = static_cast<std::uint8_t>(pace);
    use.cls = ReuseModel::PaceClass(pace / kPaceParts);
  }

  void Remember(const TouchHistory::Use& use) {
    history_.Add(use);
    history_.Advance(now_);
    if (++uses_ % kUsesPerRefreshStep == 0) Refresh();
    if (uses_ % (history_.capacity() / kFadesPerHistory) == 0) model_.Fade();
  }

  void Refresh() {
    const std::uint32_t cls = model_.RefreshStep(now_);
    if (cls == ReuseModel::kClasses) return;
    for (Lane& lane : lanes_) {
      for (std::uint32_t bin = 0; bin < ReuseModel::kBins; ++bin) {
        const std::uint32_t cell = cls * ReuseModel::kBins + bin;
        if (lane.cells[cell].head != kNone) lane.minima.Set(cell, model_.index(cls, bin));
      }
    }
  }

  void AdvanceTo(std::uint64_t now_ns) {
    if (!origin_ns_) origin_ns_ = now_ns;
    const std::uint64_t ticks = (std::max(now_ns, *origin_ns_) - *origin_ns_) >> kTickShift;
    now_ = std::max(now_, static_cast<Ticks>(std::min<std::uint64_t>(ticks, std::numeric_limits<Ticks>::max())));
    if (lanes_.empty()) return;
    Lane& lane = lanes_[next_lane_];
    for (std::uint32_t i = 0; i < kCellsPerCall; ++i) {
      for (std::uint32_t move = 0; move < kMovesPerCell && HasOutgrown(lane, next_cell_); ++move) {
        Move(lane.cells[next_cell_].head);
      }
      if (++next_cell_ < kCells) continue;
      next_cell_ = 0;
      next_lane_ = next_lane_ + 1 == lanes_.size() ? 0 : next_lane_ + 1;
      return;
    }
  }

  bool HasOutgrown(const Lane& lane, std::uint32_t cell) const {
    const std::uint32_t head = lane.cells[cell].head;
    const std::uint32_t bin = cell % ReuseModel::kBins;
    return head != kNone && bin + 1 < ReuseModel::kBins && now_ - blocks_[head].touched >= model_.edge(bin + 1);
  }

  void Move(std::uint32_t block) {
    TakeOut(block);
    PutIn(block);
  }

  void PutIn(std::uint32_t block) {
    Block& added = blocks_[block];
    Lane& lane = lanes_[added.lane];
    const std::uint32_t bin = model_.BinOf(now_ - added.touched);
    added.cell = static_cast<std::uint16_t>(added.cls * ReuseModel::kBins + bin);
    Cell& cell = lane.cells[added.cell];
    added.prev = kNone;
    added.next = kNone;
    if (cell.head == kNone) {
      cell.head = cell.tail = block;
      lane.minima.Set(added.cell, model_.index(added.cls, bin));
    } else if (added.touched <= blocks_[cell.head].touched) {
      added.next = cell.head;
      blocks_[cell.head].prev = block;
      cell.head = block;
    } else {
      added.prev = cell.tail;
      blocks_[cell.tail].next = block;
      cell.tail = block;
    }
  }

  void TakeOut(std::uint32_t block) {
    Block& gone = blocks_[block];
    Lane& lane = lanes_[gone.lane];
    Cell& cell = lane.cells[gone.cell];
    (gone.prev == kNone ? cell.head : blocks_[gone.prev].next) = gone.next;
    (gone.next == kNone ? cell.tail : blocks_[gone.next].prev) = gone.prev;
    if (cell.head == kNone) lane.minima.Set(gone.cell, kEmpty);
    gone.cell = kNoCell;
  }

  ReuseModel model_;
  TouchHistory history_;
  std::vector<Block> blocks_;
  std::vector<Lane> lanes_;
  std::optional<std::uint64_t> origin_ns_;  // the first time that was told
  Ticks now_ = 0;                           // since then
  std::uint64_t uses_ = 0;
  std::uint32_t next_lane_ = 0;
  std::uint32_t next_cell_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeReusePolicy(std::uint32_t max_blocks) {
  return std::make_unique<ReusePolicy>(max_blocks);
}

}  // namespace orbitkv::cache
