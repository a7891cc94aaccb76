#include "orbitkv/client/types.h"

namespace orbitkv::client {

std::string_view StateName(State state) {
  switch (state) {
    case State::kDown: return "down";
    case State::kUp: return "up";
    case State::kSuspect: return "suspect";
  }
  return "unknown";
}

std::string_view ReasonName(AnswerReason reason) {
  switch (reason) {
    case AnswerReason::kFound: return "found";
    case AnswerReason::kNoNamespace: return "no namespace";
    case AnswerReason::kAbsent: return "absent";
    case AnswerReason::kOverBudget: return "over budget";
    case AnswerReason::kDown: return "down";
    case AnswerReason::kTimedOut: return "timed out";
    case AnswerReason::kRefused: return "refused";
    case AnswerReason::kIncomplete: return "incomplete";
    case AnswerReason::kTooLate: return "too late";
    case AnswerReason::kRecompute: return "recompute";
    case AnswerReason::kLoading: return "loading";
    case AnswerReason::kNotAdmitted: return "not admitted";
    case AnswerReason::kEvicted: return "evicted";
  }
  return "unknown";
}

std::vector<std::pair<const char*, std::uint64_t>> Counters::Snapshot() const {
  std::vector<std::pair<const char*, std::uint64_t>> values;
#define ORBITKV_CLIENT_COUNTER(name) values.emplace_back(#name, name.load(std::memory_order_relaxed));
  ORBITKV_CLIENT_COUNTERS(ORBITKV_CLIENT_COUNTER)
#undef ORBITKV_CLIENT_COUNTER
  return values;
}

}  // namespace orbitkv::client
