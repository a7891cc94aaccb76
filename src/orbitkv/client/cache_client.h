// What an engine process links: look-ups, restores and saves against the Manager of this host.
//
// A scheduler asks which leading blocks of a request are cached (Query), begins a restore of the blocks it takes
// (BeginRestore: posted, the grant id travels in the engine's own metadata) and gives back what it does not use. A
// worker registers its pages once, restores granted blocks into them and publishes finished ones; both are jobs on
// background threads whose completions are polled.
//
// An engine may have several cache groups, whose blocks need not all be kept (state/contract.h). Look-ups and restores
// then count in hash blocks, an answer lists the boundaries at which the engine could go on, a restore brings what the
// one that was taken demands of every group, and a publish names the blocks that it has. With one group of full
// attention a hash block is a block, and every count of blocks is a boundary.
//
// Nothing here waits for the Manager beyond the deadlines of ClientOptions: without a Manager look-ups find nothing,
// restores fail, saves are dropped, and a Manager that comes back is picked up again.
//
// Owns: threads, sessions, the mapping of the pool. The engine owns its pages and keeps them until Stop has returned.
// Threads: every call from any thread. Blocks: Ask, Claim, WaitUp, WaitJob, WaitLayers, WaitSourcesFree for as long as
//          the caller says; Restore for small jobs, a bounded time; Stop until copies in flight have ended.
// Units: nanoseconds, bytes, (hash) blocks counted from the start of the request.
// Errors: kInvalid for arguments that the options or the layout do not allow, kBusy for a full queue, kCancelled after
//         Stop, kRefused after fork (every call; nothing of the parent's client is touched).
// Invariant: every accepted job gives exactly one completion; leases, grants and reservations that this client gives up
//            are told to the Manager until it acknowledges them or its life ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/client/layout.h"
#include "orbitkv/client/options.h"
#include "orbitkv/client/publisher.h"
#include "orbitkv/client/restorer.h"
#include "orbitkv/client/types.h"
#include "orbitkv/copy/engine.h"

namespace orbitkv::client {

class CacheClient {
 public:
  // engine: what copies; null: host threads as the options say.
  static Result<std::unique_ptr<CacheClient>> Create(const ClientOptions& options,
                                                     std::unique_ptr<copy::CopyEngine> engine = nullptr);
  // Stops. In a forked child it forgets the parent's client without touching it.
  ~CacheClient();
  CacheClient(const CacheClient&) = delete;
  CacheClient& operator=(const CacheClient&) = delete;

  // Starts the threads and returns at once; the Manager may come later.
  Status Start();
  // Saves what is queued until the deadline (0: drops it), finishes copies, ends the sessions. Completions can still be
  // polled. Idempotent. kIo when a device does not finish its copies: their jobs never end, their pages must not be
  // used again, and what they need of this client stays until the process ends.
  Status Stop(std::uint64_t drain_deadline_ns = 0);

  // Whether this process was forked from the one that made the client.
  bool forked() const;
  State state() const;
  std::optional<Incarnation> incarnation() const;
  // True when connected and registered as far as that is possible by now.
  Result<bool> WaitUp(std::uint64_t deadline_ns);
  const ClientOptions& options() const;

  // Once, by clients that move bytes; the same layout again is fine, another one kRefused.
  Status RegisterGroups(GroupLayouts groups);
  // Of an engine with one cache group.
  Status RegisterLayout(Layout layout);

  // ---- scheduler
  // Empty: not answered within wait_ns; ask again with the same request id, also when the answer is "loading". Modes:
  // the longest usable prefix, all of it or nothing, candidates without a lease, exactly the selected blocks.
  Result<std::optional<Answer>> Ask(const Query& query, std::uint64_t wait_ns);
  Status CancelQuery(std::string_view request_id);
  // Posted, not awaited: the Manager loads what is missing when it has time. kUnavailable without a Manager, kBusy when
  // the rings are full, kUnsupported by an older one; nothing is kept then.
  Status WarmUp(const Query& query);
  // Loads and keeps the blocks for whoever claims them by this name, in any process of the instance. As WarmUp.
  Result<TicketHandle> Prepare(const Query& query, std::string_view consumer);
  Status CancelPrepared(TicketHandle ticket);
  // The leased answer of a preparation; "not admitted" when there is none: ask then. Empty: as Ask.
  Result<std::optional<Answer>> Claim(const ClaimRequest& claim, std::uint64_t wait_ns);
  // Posted, not awaited. None when it could not be posted; the lease then ends by itself.
  Result<GrantId> BeginRestore(LeaseHandle lease, std::uint32_t blocks, std::span<const std::uint32_t> ranks);
  Status ReleaseLease(LeaseHandle lease);
  Status ReleaseGrant(GrantId grant);

  // ---- worker
  Result<JobId> Restore(const RestoreRequest& request);
  Result<JobId> Publish(const PublishRequest& request);
  // True: no page of the job was read and none will be.
  Result<bool> CancelPublish(JobId job);
  // True when none of the jobs reads its pages any more; queued ones are dropped for it.
  Result<bool> WaitSourcesFree(std::span<const JobId> jobs, std::uint64_t deadline_ns);

  // These pages of a group have a new use from now on: jobs that named an older generation and have not begun to copy
  // are dropped.
  Status RenewPages(std::span<const std::uint32_t> block_ids, std::uint64_t generation, std::uint32_t group = 0);

  // ---- completions
  // A job is a handle of this client alone: pending, enqueued (bytes may be moving), drained-ok or drained-failed.
  // kNotFound when it is another client's, or its completion was taken long ago.
  Result<JobState> StateOf(JobId job) const;
  // Its state at the deadline, or as soon as it is drained. Changes nothing about who owns which page.
  Result<JobState> WaitJob(JobId job, std::uint64_t deadline_ns);
  // Of a restore: how many of its layers are in their pages and verified, at the deadline or as soon as they are more
  // than `known` or the job is drained. They are counted through its groups, in the order of the job's blocks, and
  // through the layers of each, as registered; the count begins with the first that is not there.
  Result<std::uint32_t> WaitLayers(JobId job, std::uint32_t known, std::uint64_t deadline_ns);
  Result<std::vector<Completion>> Poll();
  // Readable while a completion waits. Owned by the client.
  int completion_fd() const;
  std::vector<std::pair<const char*, std::uint64_t>> counters() const;

 private:
  struct Parts;
  explicit CacheClient(std::unique_ptr<Parts> parts);
  static void KeepUntilExit(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace orbitkv::client
