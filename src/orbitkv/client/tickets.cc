#include "orbitkv/client/tickets.h"

#include <span>

#include "orbitkv/os/clock.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::client {

void GiveLeaseBack(Life& life, std::uint64_t lease) {
  if (lease == 0 || life.lost()) return;
  (void)life.control().PostNeverLost(wire::Command::kRelease, static_cast<std::uint64_t>(wire::ReleaseKind::kLease),
                                     lease);
}

void Tickets::Follow(const Life& life) {
  if (life_ == life.number()) return;
  life_ = life.number();
  next_operation_ = 1;
  entries_.clear();
  seen_word_ = life.control().completions();
  missed_ = false;
  poll_.reset();
}

std::uint64_t Tickets::NewOperation(const Life& life) {
  const MutexLock lock(mutex_);
  Follow(life);
  return next_operation_++;
}

void Tickets::Add(const Life& life, const Ticket& ticket, std::uint32_t word) {
  const MutexLock lock(mutex_);
  Follow(life);
  entries_[ticket.operation] = {.revision = ticket.revision};
  // It may have ended before it was in the list, and a poll of others has taken the news away.
  if (life.control().completions() != word) missed_ = true;
}

void Tickets::Forget(const Life& life, const Ticket& ticket) {
  const MutexLock lock(mutex_);
  if (life_ == life.number()) entries_.erase(ticket.operation);
}

std::optional<TicketEnd> Tickets::Take(const Ticket& ticket) {
  const auto it = entries_.find(ticket.operation);
  if (it == entries_.end() || it->second.revision != ticket.revision) return TicketEnd{};
  if (!it->second.end) return std::nullopt;
  TicketEnd end = std::move(*it->second.end);
  entries_.erase(it);
  return end;
}

Tickets::Poll Tickets::Start(Life& life, bool must_ask) {
  if (poll_) return Poll::kOnItsWay;
  const std::uint32_t word = life.control().completions();
  if (word == seen_word_ && !missed_ && !must_ask) return Poll::kNone;
  std::vector<wire::PollRequest> requests;
  for (const auto& [operation, entry] : entries_) {
    if (!entry.end) requests.push_back({operation, entry.revision, 0});
  }
  const std::vector<std::byte> args = wire::EncodePoll(requests);
  const auto posted =
      life.control().Post({.command = wire::Command::kQueryPoll, .args = args, .deadline_ns = os::kNoDeadline});
  if (!posted) return Poll::kFailed;
  Count(counters_.ticket_polls);
  // What ends from now on moves the word again.
  seen_word_ = word;
  missed_ = false;
  poll_ = *posted;
  polled_ns_ = os::MonotonicNs();
  return Poll::kOnItsWay;
}

std::vector<std::uint64_t> Tickets::Apply(const channel::Answer& answer) {
  std::vector<std::uint64_t> unwanted;
  const auto polled =
      answer.ok() ? ReadPolled(answer.payload.bytes()) : Fail(Code::kInvalid, "the Manager did not take the poll");
  if (!polled) {
    Count(counters_.bad_answers);
    return unwanted;
  }
  for (const PolledTicket& told : *polled) {
    const auto it = entries_.find(told.operation);
    const bool waited_for = it != entries_.end() && it->second.revision == told.revision && !it->second.end;
    if (!waited_for) {
      unwanted.push_back(told.end.lease);
    } else if (told.end.state != wire::TicketState::kLoading) {
      it->second.end = told.end;
    }
  }
  return unwanted;
}

std::optional<TicketEnd> Tickets::Wait(Life& life, const Ticket& ticket, std::uint64_t until_ns, bool must_ask) {
  channel::ClientSession& session = life.control();
  for (;;) {
    std::optional<channel::RequestId> poll;
    std::uint32_t word = 0;
    {
      const MutexLock lock(mutex_);
      Follow(life);
      if (auto end = Take(ticket)) return end;
      if (Start(life, must_ask) == Poll::kFailed) return std::nullopt;
      must_ask = must_ask && !poll_;
      poll = poll_;
      word = seen_word_;
    }
    if (!poll) {
      if (os::MonotonicNs() >= until_ns || life.lost()) return std::nullopt;
      session.WaitCompletions(word, until_ns);
      continue;
    }
    const auto answer = session.Wait(*poll, until_ns);
    if (!answer && answer.error().code == Code::kTimedOut) return std::nullopt;
    std::vector<std::uint64_t> unwanted;
    {
      const MutexLock lock(mutex_);
      if (answer && poll_ == poll) unwanted = Apply(*answer);
      // Another thread that waited for the same poll has its answer, or is about to note it.
      if (!answer && answer.error().code == Code::kStale) {
        if (os::MonotonicNs() >= until_ns) return Take(ticket);
        continue;
      }
      if (poll_ == poll) poll_.reset();
    }
    for (const std::uint64_t lease : unwanted) GiveLeaseBack(life, lease);
    if (!answer) return std::nullopt;
  }
}

}  // namespace orbitkv::client
