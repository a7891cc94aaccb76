#include "orbitkv/testing/sim/network.h"

#include <iterator>

#include "orbitkv/testing/sim/process.h"

namespace orbitkv::sim {

void Network::Open(std::uint64_t life, SessionId session, Process* process) {
  sockets_[Key(life, session)].process = process;
}

void Network::Send(std::uint64_t life, const Frame& frame) {
  const auto socket = sockets_.find(Key(life, frame.session));
  if (socket != sockets_.end() && !socket->second.manager_gone) socket->second.up.push_back(frame);
}

void Network::HangUp(std::uint64_t life, SessionId session) {
  const auto found = sockets_.find(Key(life, session));
  if (found == sockets_.end() || !found->second.open) return;
  Socket& socket = found->second;
  if (socket.manager_gone) {
    sockets_.erase(found);
    return;
  }
  socket.open = false;
  socket.down.clear();
  socket.up.push_back({.kind = Frame::Kind::kHungUp, .session = session});
}

void Network::Kill(Process* process) {
  for (auto socket = sockets_.begin(); socket != sockets_.end();) {
    const auto next = std::next(socket);
    if (const Key key = socket->first; socket->second.process == process) {
      HangUp(key.first, key.second);
      const auto kept = sockets_.find(key);
      if (kept != sockets_.end()) {
        kept->second.process = nullptr;
        kept->second.dying = true;
      }
    }
    socket = next;
  }
}

void Network::Take(std::uint64_t life, std::vector<Reply> replies) {
  for (Reply& reply : replies) {
    const auto socket = sockets_.find(Key(life, reply.session));
    if (socket != sockets_.end() && socket->second.open) socket->second.down.push_back(std::move(reply));
  }
}

void Network::ManagerGone(std::uint64_t life) {
  for (auto socket = sockets_.begin(); socket != sockets_.end();) {
    const auto next = std::next(socket);
    if (socket->first.first == life) {
      socket->second.manager_gone = true;
      socket->second.up.clear();
      socket->second.dying = false;
      socket->second.down.push_back({.kind = Reply::Kind::kClosed, .session = socket->first.second});
      if (!socket->second.open) sockets_.erase(socket);
    }
    socket = next;
  }
}

bool Network::idle() const {
  for (const auto& [key, socket] : sockets_) {
    if (!socket.up.empty() || !socket.down.empty() || socket.dying) return false;
  }
  return true;
}

void Network::Deliver(Prng& prng, ManagerLife* manager) {
  if (sockets_.empty()) return;
  const auto at = std::next(sockets_.begin(), static_cast<std::ptrdiff_t>(prng.Below(sockets_.size())));
  const auto [life, session] = at->first;
  Socket& socket = at->second;
  const bool to_client = !socket.down.empty() && (socket.up.empty() || prng.Below(2) == 0);
  if (to_client) {
    const Reply reply = std::move(socket.down.front());
    socket.down.pop_front();
    Process* const process = socket.process;
    if (reply.kind == Reply::Kind::kClosed) sockets_.erase(at);
    if (process != nullptr) process->Receive(life, reply);
    return;
  }
  if (manager == nullptr || manager->number() != life) return;
  if (socket.dying && (socket.up.empty() || prng.Below(4) == 0)) {
    manager->Post({.kind = Frame::Kind::kDied, .session = session});
    sockets_.erase(at);
    return;
  }
  if (socket.up.empty()) return;
  manager->Post(std::move(socket.up.front()));
  socket.up.pop_front();
}

}  // namespace orbitkv::sim
