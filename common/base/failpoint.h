// Places where tests make a daemon fail. They compile to nothing unless DWS_FAILPOINTS is defined;
// released packages do not define it.
//
//   DWS_FAILPOINT("receiver.commit.after_staged");    // in functions returning Status or Result
//   DWS_KILLPOINT("receiver.commit.inside_scatter");  // anywhere; ignores the action `error`
//
// The environment arms them; several entries are separated by commas. DWS_FAILPOINT=
//   "name:kill"    sends SIGKILL to this process, like a power cut
//   "name:error"   makes the function return INTERNAL
//   "name:hold"    makes the thread create the file that DWS_FAILPOINT_HOLD names, and wait there
//                  until the file is removed
//   "name:kill@3"  acts only when the failpoint is reached for the third time
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// All failpoints. A name that is not listed here does not compile.
// tests/integration/recovery_test.py kills the daemon at each of them, group_kill_test.py at those
// of commit groups, nccl_test.py at those of broadcasts, cuda_sync_test.py at that of GPUs.
// trainers/on_demand_recovery_test.py kills senders of training on demand at theirs. kill_test.py
// kills either daemon in a transfer by each source.
inline constexpr std::array<std::string_view, 74> kFailpoints = {
    "sender.register.after_record",
    "sender.refine.after_record",
    "sender.gpu.after_read",
    "sender.publish.after_capture",
    "sender.publish.after_seal",
    "sender.publish.after_record",
    "sender.publish.after_retain",
    "sender.publish.after_announce",
    "sender.fetch.after_chunk",
    "sender.full.after_frame",
    "sender.ack.after_commit",
    "sender.broadcast.after_begin",
    "sender.train.after_load",
    "sender.train.inside_record",
    "sender.train.after_open",
    "sender.train.before_ask",
    "sender.train.before_abandon",
    "sender.train.before_offer",
    "sender.train.before_finish",
    "sender.train.before_ack",
    "sender.train.inside_seal",
    "sender.train.after_seal",
    "sender.train.after_sealed",
    "sender.train.before_step",
    "sender.train.after_stepped",
    "sender.train.before_released",
    "sender.train.after_released",
    "receiver.stream.after_record",
    "receiver.attach.after_digests",
    "receiver.fetch.after_bytes",
    "receiver.prepare.after_fetch",
    "receiver.prepare.after_fetch_full",
    "receiver.full.inside_snapshot",
    "receiver.commit.after_staged",
    "receiver.commit.after_intent",
    "receiver.commit.after_pause",
    "receiver.commit.inside_scatter",
    "receiver.commit.inside_apply",
    "receiver.commit.after_scatter",
    "receiver.commit.after_resume",
    "receiver.commit.after_record",
    "receiver.commit.after_ack",
    "receiver.verify.after_batch",
    "receiver.resync.after_batch",
    "receiver.broadcast.after_begin",
    // Reached by a receiver in a commit group, as member and as leader.
    "group.stage.after_prepare",
    "group.stage.after_staged",
    "group.decide.after_record",
    "group.pause.after_pause",
    "group.commit.after_send",
    "group.commit.before_write",
    "group.commit.after_write",
    "group.commit.after_answer",
    "group.release.before_resume",
    "group.release.after_resume",
    "group.settle.after_record",
    // Reached by both daemons.
    "ledger.append.before_sync",
    "ledger.append.after_sync",
    "file.replace.before_rename",
    "file.replace.after_rename",
    // Reached while version folders are written, or applied to local checkpoints
    // (tests/common/formats).
    "slime.write.before_index",
    "slime.apply.before_intent",
    "slime.apply.after_intent",
    "slime.apply.inside_tensor",
    "slime.apply.after_tensor",
    "slime.apply.after_write",
    "slime.apply.after_sync",
    "slime.apply.after_digests",
    "slime.apply.after_state",
    "slime.apply.after_unmark",
    // Reached by a receiver that follows a folder (tests/integration/follow_test.py).
    "follow.after_apply",
    "follow.after_pause",
    "follow.after_load",
    // Used only by the tests of failpoints.
    "test.work",
};

constexpr bool IsFailpoint(std::string_view name) {
  return std::find(kFailpoints.begin(), kFailpoints.end(), name) != kFailpoints.end();
}

enum class FailpointAction { kNone, kKill, kError, kHold };

// What an armed failpoint does, and when.
struct ArmedFailpoint {
  FailpointAction action = FailpointAction::kNone;
  uint32_t at = 0;  // acts when reached for the at-th time; 0: each time
};

// Returns what `armed` (the environment variable's text) says about `name`. Text that it cannot
// parse aborts the process: a test whose typing error armed nothing would prove nothing.
ArmedFailpoint FindFailpoint(std::string_view armed, std::string_view name);

// Carries out the action armed for `name`, if any. INTERNAL for `error`. For the macros below.
Status ReachFailpoint(std::string_view name);

// A function that replaces the environment's settings: it runs at every failpoint of this process.
// An empty hook restores the environment's settings. For tests that run product code in their own
// process. Threads: the thread that sets the hook must be the only one that reaches failpoints.
using FailpointHook = std::function<Status(std::string_view name)>;
void SetFailpointHook(FailpointHook hook);

}  // namespace dws

#if defined(DWS_FAILPOINTS)
#define DWS_FAILPOINT(name)                \
  static_assert(::dws::IsFailpoint(name)); \
  DWS_RETURN_IF_ERROR(::dws::ReachFailpoint(name))
#define DWS_KILLPOINT(name)                \
  static_assert(::dws::IsFailpoint(name)); \
  static_cast<void>(::dws::ReachFailpoint(name))
#else
#define DWS_FAILPOINT(name) static_assert(::dws::IsFailpoint(name))
#define DWS_KILLPOINT(name) static_assert(::dws::IsFailpoint(name))
#endif
