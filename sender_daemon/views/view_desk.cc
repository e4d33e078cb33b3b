#include "sender_daemon/views/view_desk.h"

#include <chrono>
#include <set>
#include <utility>

#include "common/base/log/log.h"
#include "common/model/identity_limits.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// A receiver that restarts finds its view still there.
constexpr std::chrono::minutes kUnusedMax{2};
// How long a view that begins waits for the trainer's newest version to be recorded.
constexpr std::chrono::seconds kSealWait{1};

// By the trainer's rank block number.
std::vector<bool> ChangedBlocks(const CapturedVersion& captured, uint64_t block_count) {
  std::vector<bool> changed(block_count, true);
  if (!captured.base.has_value()) return changed;
  for (uint64_t b = 0; b < block_count; ++b) {
    changed[b] = captured.blocks[b].mode != BlockMode::kEmpty;
  }
  return changed;
}

}  // namespace

void ViewDesk::Follow(const std::string& name, const std::function<void(const Status&)>& refused) {
  const bool posted = parts_.executor.Post([this, name, refused] {
    const Status begun = Begin(name);
    if (begun.ok()) return;
    LogWarning("view_refused", {{"view", name}, {"reason", Message(begun)}});
    refused(begun);
  });
  if (!posted) refused(UnavailableError("the sender is busy with its trainer's calls; try again"));
}

Status ViewDesk::Begin(const std::string& name) {
  if (trainer_ == nullptr) {  // OnState begins it
    followed_.try_emplace(name, Followed{.view = nullptr, .used_at = parts_.clock.Now()});
    return OkStatus();
  }
  const auto found = followed_.find(name);
  if (found != followed_.end() && found->second.view != nullptr) return OkStatus();
  DropUnused();
  if (followed_.size() >= limits::kViewsFollowedMax && found == followed_.end()) {
    return ResourceExhaustedError("{} views are followed, at most {} are supported",
                                  followed_.size(), limits::kViewsFollowedMax);
  }
  DWS_ASSIGN_OR_RETURN(auto view, ViewSnapshot::Create(name, trainer_, parts_.log_limits));
  const std::optional<WeightVersion> version = trainer_->snapshot->version();
  if (version.has_value() && !open_) {
    if (!parts_.pipeline.Drain(kSealWait).ok()) {
      return UnavailableError("versions are being recorded; try again");
    }
    const TimePoint began = parts_.clock.Now();
    SealJob job{.state = view->state(),
                .captured = view->CaptureVersion(*version, {}, parts_.pool)};
    job.capture_seconds = ToSeconds(parts_.clock.Now() - began);
    job.accepted_at = began;
    view->state()->log->Append(Seal(std::move(job)));
  }
  LogInfo("view_begun", {{"view", name},
                         {"bytes", view->state()->layout().size_bytes()},
                         {"version", version.value_or(WeightVersion(0)).value()}});
  parts_.hub.SetView(name, view->state());
  followed_[name] = {.view = std::move(view), .used_at = parts_.clock.Now()};
  return OkStatus();
}

void ViewDesk::OnState(RankStatePtr trainer) {
  open_ = false;
  if (trainer_ == trainer) {  // its trainer has registered again
    for (const auto& [name, followed] : followed_) {
      if (followed.view != nullptr) parts_.hub.SetView(name, followed.view->state());
    }
    return;
  }
  trainer_ = std::move(trainer);
  std::map<std::string, Followed> before;
  before.swap(followed_);
  for (const auto& [name, followed] : before) {
    if (const Status begun = Begin(name); !begun.ok()) {
      LogWarning("view_ended", {{"view", name}, {"reason", Message(begun)}});
      parts_.hub.EndView(name, begun);
    }
  }
}

void ViewDesk::DropUnused() {
  const std::set<std::string> names = parts_.hub.FollowedViews();
  const TimePoint now = parts_.clock.Now();
  for (auto it = followed_.begin(); it != followed_.end();) {
    if (names.contains(it->first)) it->second.used_at = now;
    if (now - it->second.used_at <= kUnusedMax) {
      ++it;
      continue;
    }
    LogInfo("view_dropped", {{"view", it->first}, {"reason", "nobody follows it"}});
    parts_.hub.SetView(it->first, nullptr);
    it = followed_.erase(it);
  }
}

std::vector<ViewJob> ViewDesk::OnCaptured(const CapturedVersion& captured) {
  open_ = false;
  DropUnused();
  std::vector<ViewJob> jobs;
  if (followed_.empty()) return jobs;
  const std::vector<bool> changed = ChangedBlocks(captured, trainer_->layout().block_count());
  for (auto& [name, followed] : followed_) {
    if (followed.view == nullptr) continue;
    jobs.push_back(
        {.state = followed.view->state(),
         .captured = followed.view->CaptureVersion(captured.version, changed, parts_.pool)});
  }
  return jobs;
}

}  // namespace dws
