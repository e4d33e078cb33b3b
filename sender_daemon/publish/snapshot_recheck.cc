// Runs on its own thread: reading a snapshot takes long, and the stream that reported a refusal
// must not wait for it.
#include "sender_daemon/publish/snapshot_recheck.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "sender_daemon/capture/snapshot_check.h"

namespace dws {
namespace {
constexpr size_t kQueueMax = 16;
}  // namespace

SnapshotRecheck::SnapshotRecheck(std::function<void()> on_damaged)
    : on_damaged_(std::move(on_damaged)), executor_(1, kQueueMax) {}

void SnapshotRecheck::Ask(RankStatePtr state, std::vector<RankSlice> slices) {
  std::sort(slices.begin(), slices.end());
  slices.erase(std::unique(slices.begin(), slices.end()), slices.end());
  std::erase_if(
      slices, [&state](RankSlice slice) { return slice.value() >= state->layout().slice_count(); });
  if (slices.empty()) return;
  static_cast<void>(executor_.Post(
      [this, state = std::move(state), slices = std::move(slices)] { Check(*state, slices); }));
}

void SnapshotRecheck::AskAll(RankStatePtr state) {
  std::vector<RankSlice> all;
  for (uint32_t i = 0; i < state->layout().slice_count(); ++i) all.emplace_back(i);
  Ask(std::move(state), std::move(all));
}

void SnapshotRecheck::Stop() {
  stopping_.store(true);
  executor_.Stop();
}

void SnapshotRecheck::Check(const RankState& state, const std::vector<RankSlice>& slices) {
  for (const RankSlice slice : slices) {
    if (stopping_.load()) return;
    DWS_CHECK(slice.value() < state.layout().slice_count());  // Ask drops others
    const auto difference = CheckSlice(*state.snapshot, slice, limits::kSnapshotReadDeadline);
    const std::string& tensor = state.layout().tensor(slice).name;
    if (!difference.ok()) {
      LogWarning("snapshot_not_checked", {{"tensor", tensor},
                                          {"rank_slice", slice.value()},
                                          {"reason", Message(difference.status())}});
    } else if (difference->has_value()) {
      if ((*difference)->known) continue;  // refused again before it was corrected
      LogSnapshotDamaged(state.layout(), **difference);
      on_damaged_();
    } else {
      LogInfo("snapshot_intact", {{"tensor", tensor},
                                  {"rank_slice", slice.value()},
                                  {"reason",
                                   "a receiver refused it: the bytes here are those that "
                                   "were published"}});
    }
  }
}

}  // namespace dws
