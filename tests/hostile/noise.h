// Attacks that more than one test uses.
// Owns: nothing. Threads: the attacker's. Blocks: SpeakNoise returns only when it cannot connect.
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

}  // namespace orbitkv::hostile
