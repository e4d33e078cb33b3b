// Places where tests make a daemon fail. They are compiled to nothing unless DWS_FAILPOINTS is
// defined, and released packages do not define it.
//
//   DWS_FAILPOINT("receiver.commit.after_staged");    // in a function that returns Status or
//   Result DWS_KILLPOINT("receiver.commit.inside_scatter");  // anywhere; knows no `error`
//
// Armed by the environment: DWS_FAILPOINT="name:kill" (SIGKILL to this process, as a power cut) or
// "name:error" (the function returns INTERNAL) or "name:hold" (the thread makes the file that
// DWS_FAILPOINT_HOLD names and stays until the file is gone); "name:kill@3" when it is reached for
// the third time. Several are separated by commas.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// Every failpoint there is: one that is not listed does not compile.
// tests/integration/recovery_test.py kills the daemon at each of them, group_kill_test.py at those
// of commit groups, nccl_test.py at those of broadcasts.
inline constexpr std::array<std::string_view, 55> kFailpoints = {
    "sender.register.after_record",
    "sender.publish.after_capture",
    "sender.publish.after_seal",
    "sender.publish.after_record",
    "sender.publish.after_retain",
    "sender.publish.after_announce",
    "sender.fetch.after_chunk",
    "sender.full.after_frame",
    "sender.ack.after_commit",
    "sender.broadcast.after_begin",
    "receiver.stream.after_record",
    "receiver.attach.after_digests",
    "receiver.prepare.after_fetch",
    "receiver.prepare.after_fetch_full",
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
    // Of a receiver in a commit group, as member and as leader.
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
    // Of both daemons.
    "ledger.append.before_sync",
    "ledger.append.after_sync",
    "file.replace.before_rename",
    "file.replace.after_rename",
    // Of version folders and of local checkpoints they are applied to (tests/common/formats).
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
    // Of a receiver that follows a folder (tests/integration/follow_test.py).
    "follow.after_apply",
    "follow.after_pause",
    "follow.after_load",
    // Of the failpoints' own tests.
    "test.work",
};

constexpr bool IsFailpoint(std::string_view name) {
  return std::find(kFailpoints.begin(), kFailpoints.end(), name) != kFailpoints.end();
}

enum class FailpointAction { kNone, kKill, kError, kHold };

struct ArmedFailpoint {
  FailpointAction action = FailpointAction::kNone;
  uint32_t at = 0;  // when it is reached for the n-th time; 0: whenever it is reached
};

// What `armed` (the environment variable's text) says about `name`. Anything it does not understand
// aborts: a test that arms nothing by a typing error would prove nothing.
ArmedFailpoint FindFailpoint(std::string_view armed, std::string_view name);

// Does it. For the macros below.
Status ReachFailpoint(std::string_view name);

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
