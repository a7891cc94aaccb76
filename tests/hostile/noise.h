// Attacks that more than one test uses.
// Owns: nothing. Threads: the attacker's. Blocks: they return only when they cannot connect.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "orbitkv/base/prng.h"

namespace orbitkv::hostile {

// Eight random bytes somewhere.
void Scribble(std::span<std::byte> memory, Prng& prng);

// Commands in good order but for what chance makes of them, at full speed, with a new session after so many of them.
void SpeakNoise(const std::string& socket, std::uint64_t seed, const std::function<void()>& ready,
                std::uint64_t per_session = 20'000);

// Rings the doorbell of a session, and sends nothing.
void RingForNothing(const std::string& socket, const std::function<void()>& ready);

// Opens sessions and ends them at once, at full speed, whatever the Manager says. Tells when it was refused for its
// pace, or never was in many tries.
void Reconnect(const std::string& socket, const std::function<void()>& ready);

// Forks for each connection, whose process opens a session and ends.
void ForkForEachConnection(const std::string& socket, const std::function<void()>& ready);

}  // namespace orbitkv::hostile
