// The service's terms for what lies behind the pool in those of a store, and back.
// Owns: nothing. Threads: values. Blocks: no. Units: bytes. Errors: none.
// Invariant: an id comes back as it was given.
#pragma once

#include <cstdint>

#include "orbitkv/service/source.h"
#include "orbitkv/store/log.h"

namespace orbitkv::manager {

inline service::SourceRecord SourceRecordOf(const store::Facts& facts) {
  return {facts.parent, facts.depth, facts.checksum};
}

inline store::LoadJob LoadJobOf(const service::LoadRequest& request) {
  return {.id = request.id,
          .key = request.key.state_key(),
          .payload_bytes = request.key.slot_bytes,
          .offset = request.offset};
}

inline store::SaveJob SaveJobOf(const service::SaveRequest& request) {
  return {.id = request.id,
          .key = request.key.state_key(),
          .facts = {.parent = request.record.parent,
                    .depth = request.record.depth,
                    .payload_bytes = request.key.slot_bytes,
                    .checksum = request.record.checksum},
          .page_count = request.shape.page_count,
          .page_bytes = request.shape.page_bytes,
          .offset = request.offset};
}

inline service::LoadResult LoadResultOf(store::LogEnd::Result result) {
  switch (result) {
    case store::LogEnd::Result::kOk: return service::LoadResult::kOk;
    case store::LogEnd::Result::kShort: return service::LoadResult::kShort;
    case store::LogEnd::Result::kNoRoom:
    case store::LogEnd::Result::kFailed: break;
  }
  return service::LoadResult::kFailed;
}

inline service::SaveResult SaveResultOf(store::LogEnd::Result result) {
  switch (result) {
    case store::LogEnd::Result::kOk: return service::SaveResult::kSaved;
    case store::LogEnd::Result::kNoRoom: return service::SaveResult::kNoRoom;
    case store::LogEnd::Result::kShort:
    case store::LogEnd::Result::kFailed: break;
  }
  return service::SaveResult::kFailed;
}

}  // namespace orbitkv::manager
