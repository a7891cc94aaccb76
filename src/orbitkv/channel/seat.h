// A session's row in memory that outlives the Manager, and the descriptor by which a later one sees whether a process
// of the session still runs.
// Owns: a Seat owns its row and gives it back. Threads: Seats any; a Seat one. Blocks: no.
// Errors: Take kBusy when all rows are taken.
// Invariant: a row that is taken is nobody else's until it is given back.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::channel {

class Seats {
 public:
  struct Taken {
    std::uint32_t row = 0;
    os::UniqueFd liveness;  // the row is locked for as long as this is open anywhere; none when it is not watched
  };
  virtual ~Seats() = default;
  // watched: the client keeps the liveness descriptor.
  virtual Result<Taken> Take(bool watched) = 0;
  virtual void Give(std::uint32_t row) = 0;
};

class Seat {
 public:
  Seat() = default;
  Seat(Seats* seats, std::uint32_t row, bool watched) : seats_(seats), row_(row), watched_(watched) {}
  // The liveness descriptor goes to `passed`, and to nobody else: the row is locked for as long as the client has it.
  static Result<Seat> Take(Seats& seats, bool watched, std::vector<os::UniqueFd>& passed) {
    ORBITKV_ASSIGN_OR_RETURN(Seats::Taken taken, seats.Take(watched));
    Seat seat(&seats, taken.row, taken.liveness.valid());
    if (taken.liveness.valid()) passed.push_back(std::move(taken.liveness));
    return seat;
  }
  Seat(Seat&& other) noexcept
      : seats_(std::exchange(other.seats_, nullptr)), row_(other.row_), watched_(other.watched_) {}
  Seat& operator=(Seat&& other) noexcept {
    if (this != &other) {
      GiveBack();
      seats_ = std::exchange(other.seats_, nullptr);
      row_ = other.row_;
      watched_ = other.watched_;
    }
    return *this;
  }
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;
  ~Seat() { GiveBack(); }

  bool taken() const { return seats_ != nullptr; }
  std::uint32_t row() const { return row_; }
  bool watched() const { return watched_; }

 private:
  void GiveBack() {
    if (seats_ != nullptr) seats_->Give(row_);
    seats_ = nullptr;
  }
  Seats* seats_ = nullptr;
  std::uint32_t row_ = 0;
  bool watched_ = false;
};

}  // namespace orbitkv::channel
