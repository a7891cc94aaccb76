#include "orbitkv/pool/session_lists.h"

#include <array>
#include <bit>
#include <cstring>

#include "orbitkv/base/check.h"
#include "orbitkv/wire/crc32c.h"

namespace orbitkv::pool {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
constexpr std::size_t kHeaderWords = wire::kSessionRowHeaderBytes / kWordBytes;
constexpr std::uint32_t kOpen = 0x4e504f53U;
constexpr std::uint32_t kWatched = 1;

}  // namespace

struct SessionLists::Header {
  std::uint64_t incarnation_hi = 0;
  std::uint64_t incarnation_lo = 0;
  std::uint64_t token = 0;
  std::int32_t pid = 0;
  std::uint32_t flags = 0;
  std::uint64_t reserved[3] = {};
  std::uint32_t state = 0;
  std::uint32_t crc = 0;  // of everything before it

  std::uint32_t Crc() const { return wire::Crc32c(std::as_bytes(std::span(this, 1)).first(offsetof(Header, crc))); }
};

SessionLists::SessionLists(wire::TableMemory& table, std::uint32_t rows, std::uint32_t max_slots)
    : table_(table),
      max_slots_(max_slots),
      row_words_(wire::SessionRowBytes(max_slots) / kWordBytes),
      open_(rows),
      clean_(rows),
      listed_(rows),
      more_(rows) {
  static_assert(sizeof(Header) == wire::kSessionRowHeaderBytes);
  ORBITKV_CHECK(table.bytes().size() >= rows * row_words_ * kWordBytes);
}

std::uint64_t SessionLists::Word(std::size_t word) const {
  std::uint64_t value = 0;
  std::memcpy(&value, table_.bytes().data() + word * kWordBytes, sizeof(value));
  return value;
}

std::size_t SessionLists::BitWord(std::uint32_t row, SlotIndex slot) const {
  return FirstWord(row) + kHeaderWords + (slot.value() - 1) / 64;
}

std::vector<SessionLists::Earlier> SessionLists::Load() const {
  std::vector<Earlier> all;
  for (std::uint32_t row = 0; row < rows(); ++row) {
    Header header;
    std::memcpy(&header, table_.bytes().data() + FirstWord(row) * kWordBytes, sizeof(header));
    if (header.state == 0 && header.crc == 0) continue;
    Earlier earlier{.row = row, .owner = {}, .slots = {}};
    if (header.state == kOpen && header.crc == header.Crc()) {
      earlier.owner = {.incarnation = {header.incarnation_hi, header.incarnation_lo},
                       .token = header.token,
                       .pid = header.pid,
                       .watched = (header.flags & kWatched) != 0};
    } else {
      // Who this was is lost. It is taken for one that its lock tells of.
      earlier.owner.watched = true;
    }
    for (std::size_t word = 0; word < row_words_ - kHeaderWords; ++word) {
      for (std::uint64_t bits = Word(FirstWord(row) + kHeaderWords + word); bits != 0; bits &= bits - 1) {
        const std::uint64_t slot = word * 64 + static_cast<std::uint64_t>(std::countr_zero(bits));
        if (slot < max_slots_) earlier.slots.emplace_back(static_cast<std::uint32_t>(slot + 1));
      }
    }
    all.push_back(std::move(earlier));
  }
  return all;
}

Status SessionLists::Open(std::uint32_t row, const SessionOwner& owner) {
  if (row >= rows()) return Fail(Code::kInvalid, "no such row of the session table", row, rows());
  if (open_[row]) return Fail(Code::kBusy, "the row belongs to another session", row);
  Header header{.incarnation_hi = owner.incarnation.hi,
                .incarnation_lo = owner.incarnation.lo,
                .token = owner.token,
                .pid = owner.pid,
                .flags = owner.watched ? kWatched : 0,
                .state = kOpen};
  header.crc = header.Crc();
  const auto words = std::bit_cast<std::array<std::uint64_t, kHeaderWords>>(header);
  const std::size_t first = FirstWord(row);
  table_.Store(first + kHeaderWords - 1, 0);
  Wipe(row);
  for (std::size_t word = 0; word < kHeaderWords; ++word) table_.Store(first + word, words[word]);
  open_[row] = true;
  return {};
}

void SessionLists::Close(std::uint32_t row) {
  if (row >= rows()) return;
  table_.Store(FirstWord(row) + kHeaderWords - 1, 0);
  Wipe(row);
  open_[row] = false;
  more_[row].clear();
}

void SessionLists::Wipe(std::uint32_t row) {
  if (clean_[row] && listed_[row] == 0) return;
  const std::size_t begin = FirstWord(row) + kHeaderWords;
  for (std::size_t word = begin; word < FirstWord(row) + row_words_; ++word) {
    if (Word(word) != 0) table_.Store(word, 0);
  }
  clean_[row] = true;
  listed_[row] = 0;
}

void SessionLists::Add(std::uint32_t row, SlotIndex slot) {
  ORBITKV_CHECK(row < rows() && open_[row] && !slot.is_none() && slot.value() <= max_slots_);
  const std::size_t word = BitWord(row, slot);
  const std::uint64_t bit = std::uint64_t{1} << (slot.value() - 1) % 64;
  const std::uint64_t before = Word(word);
  if ((before & bit) != 0) {
    ++more_[row][slot.value()];
    return;
  }
  table_.Store(word, before | bit);
  ++listed_[row];
}

void SessionLists::Remove(std::uint32_t row, SlotIndex slot) {
  ORBITKV_CHECK(row < rows() && open_[row] && !slot.is_none() && slot.value() <= max_slots_);
  if (const auto more = more_[row].find(slot.value()); more != more_[row].end()) {
    if (--more->second == 0) more_[row].erase(more);
    return;
  }
  const std::size_t word = BitWord(row, slot);
  const std::uint64_t bit = std::uint64_t{1} << (slot.value() - 1) % 64;
  if ((Word(word) & bit) == 0) return;
  table_.Store(word, Word(word) & ~bit);
  --listed_[row];
}

std::vector<bool> SlotsToHold(std::span<const SessionLists::Earlier> sessions, std::span<const std::byte> slot_table,
                              std::uint32_t max_slots, std::uint64_t budget_bytes) {
  std::vector<bool> held(std::size_t{max_slots} + 1);
  for (const SessionLists::Earlier& session : sessions) {
    std::uint64_t left = budget_bytes;
    for (const bool writing : {true, false}) {
      for (const SlotIndex slot : session.slots) {
        if (slot.is_none() || slot.value() > max_slots) continue;
        const auto record = wire::LoadSlotRecord(slot_table, slot.value() - 1);
        if (!record || (record->state == wire::SlotState::kWriting) != writing) continue;
        if (record->slot_bytes > left) continue;
        left -= record->slot_bytes;
        held[slot.value()] = true;
      }
    }
  }
  return held;
}

}  // namespace orbitkv::pool
