#include "orbitkv/wire/descriptor.h"

namespace orbitkv::wire {
namespace {

Status CheckCommon(const Descriptor& d, const DescriptorLimits& limits) {
  if (d.magic != kDescriptorMagic) return Fail(Code::kInvalid, "descriptor without the magic number", d.magic);
  if (d.abi != limits.abi) return Fail(Code::kInvalid, "descriptor of another ABI version", d.abi, limits.abi);
  if (d.session_epoch != limits.session_epoch) {
    return Fail(Code::kStale, "descriptor of another session", d.session_epoch, limits.session_epoch);
  }
  if ((d.flags & 0xffffU & ~kKnownFlags) != 0) return Fail(Code::kInvalid, "descriptor with unknown flags", d.flags);
  if (d.request_id == 0) return Fail(Code::kInvalid, "descriptor without a request id");
  if (d.arena_offset == kNoArena) {
    if (d.arena_length != 0) return Fail(Code::kInvalid, "descriptor with a length and no arena slot");
    return {};
  }
  // One slot of the arena, from its start. The offset is below arena_bytes, so the sum cannot wrap.
  if (d.arena_offset >= limits.arena_bytes || d.arena_offset % limits.slot_bytes != 0 ||
      d.arena_length > limits.slot_bytes || d.arena_length > limits.arena_bytes - d.arena_offset) {
    return Fail(Code::kInvalid, "descriptor outside the arena", d.arena_offset, d.arena_length);
  }
  return {};
}

}  // namespace

bool IsCommand(std::uint16_t op, std::uint16_t abi) {
  const Command last = abi == 1 ? Command::kRelease : Command::kQueryCancel;
  return op >= static_cast<std::uint16_t>(Command::kPing) && op <= static_cast<std::uint16_t>(last);
}

const char* CommandName(Command command) {
  switch (command) {
    case Command::kPing: return "Ping";
    case Command::kQuerySubmit: return "QuerySubmit";
    case Command::kPublishReserve: return "PublishReserve";
    case Command::kPublishCommit: return "PublishCommit";
    case Command::kPublishAbort: return "PublishAbort";
    case Command::kRestoreBegin: return "RestoreBegin";
    case Command::kRestorePlan: return "RestorePlan";
    case Command::kRestoreEnd: return "RestoreEnd";
    case Command::kRelease: return "Release";
    case Command::kQueryPoll: return "QueryPoll";
    case Command::kQueryClaim: return "QueryClaim";
    case Command::kQueryCancel: return "QueryCancel";
  }
  return "unknown";
}

bool IsAnswerStatus(std::uint16_t op) {
  return op >= static_cast<std::uint16_t>(AnswerStatus::kOk) &&
         op <= static_cast<std::uint16_t>(AnswerStatus::kUnavailable);
}

const char* StatusName(AnswerStatus status) {
  switch (status) {
    case AnswerStatus::kOk: return "kOk";
    case AnswerStatus::kMoreChunks: return "kMoreChunks";
    case AnswerStatus::kTimedOut: return "kTimedOut";
    case AnswerStatus::kInvalid: return "kInvalid";
    case AnswerStatus::kNotFound: return "kNotFound";
    case AnswerStatus::kBusy: return "kBusy";
    case AnswerStatus::kRefused: return "kRefused";
    case AnswerStatus::kStale: return "kStale";
    case AnswerStatus::kUnsupported: return "kUnsupported";
    case AnswerStatus::kNotYet: return "kNotYet";
    case AnswerStatus::kGone: return "kGone";
    case AnswerStatus::kCorrupt: return "kCorrupt";
    case AnswerStatus::kExhausted: return "kExhausted";
    case AnswerStatus::kUnavailable: return "kUnavailable";
  }
  return "unknown";
}

AnswerStatus StatusOf(Code code) {
  switch (code) {
    case Code::kInvalid: return AnswerStatus::kInvalid;
    case Code::kNotFound: return AnswerStatus::kNotFound;
    case Code::kBusy: return AnswerStatus::kBusy;
    case Code::kTimedOut: return AnswerStatus::kTimedOut;
    case Code::kRefused: return AnswerStatus::kRefused;
    case Code::kStale: return AnswerStatus::kStale;
    case Code::kCorrupt: return AnswerStatus::kCorrupt;
    case Code::kExhausted: return AnswerStatus::kExhausted;
    case Code::kUnsupported: return AnswerStatus::kUnsupported;
    case Code::kUnavailable:
    case Code::kIo:
    case Code::kCancelled: return AnswerStatus::kUnavailable;
  }
  return AnswerStatus::kUnavailable;
}

std::optional<Code> CodeOf(AnswerStatus status) {
  switch (status) {
    case AnswerStatus::kOk:
    case AnswerStatus::kMoreChunks: return std::nullopt;
    case AnswerStatus::kTimedOut: return Code::kTimedOut;
    case AnswerStatus::kInvalid: return Code::kInvalid;
    case AnswerStatus::kNotFound:
    case AnswerStatus::kGone: return Code::kNotFound;
    case AnswerStatus::kBusy:
    case AnswerStatus::kNotYet: return Code::kBusy;
    case AnswerStatus::kRefused: return Code::kRefused;
    case AnswerStatus::kStale: return Code::kStale;
    case AnswerStatus::kUnsupported: return Code::kUnsupported;
    case AnswerStatus::kCorrupt: return Code::kCorrupt;
    case AnswerStatus::kExhausted: return Code::kExhausted;
    case AnswerStatus::kUnavailable: return Code::kUnavailable;
  }
  return Code::kInvalid;
}

Result<Descriptor> DecodeRequest(const Descriptor& copied_once, const DescriptorLimits& limits) {
  ORBITKV_TRY(CheckCommon(copied_once, limits));
  if (!IsCommand(copied_once.op, limits.abi)) return Fail(Code::kInvalid, "unknown command", copied_once.op);
  if (copied_once.generation % 2 == 0) return Fail(Code::kStale, "request with an even generation");
  if ((copied_once.flags & kMoreAnswer) != 0) return Fail(Code::kInvalid, "request with an answer's flag");
  const bool fetch = (copied_once.flags & kFetch) != 0;
  if (fetch && (copied_once.arena_length != 0 || copied_once.arena_offset == kNoArena || copied_once.chunk() == 0)) {
    return Fail(Code::kInvalid, "fetch without a slot, with arguments or of the first chunk");
  }
  if (!fetch && (copied_once.flags & kLastChunk) == 0 && copied_once.arena_length != limits.slot_bytes) {
    return Fail(Code::kInvalid, "a chunk before the last one must fill its slot", copied_once.arena_length);
  }
  return copied_once;
}

Result<Descriptor> DecodeAnswer(const Descriptor& copied_once, const DescriptorLimits& limits) {
  ORBITKV_TRY(CheckCommon(copied_once, limits));
  if (!IsAnswerStatus(copied_once.op)) return Fail(Code::kInvalid, "unknown answer status", copied_once.op);
  if (copied_once.generation % 2 != 0) return Fail(Code::kStale, "answer with an odd generation");
  if ((copied_once.flags & (kFetch | kLastChunk)) != 0) return Fail(Code::kInvalid, "answer with a request's flag");
  return copied_once;
}

}  // namespace orbitkv::wire
