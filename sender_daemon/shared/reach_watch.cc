// The catalog keeps manifests of folders that are still there, so it is made to forget them.
#include "sender_daemon/shared/reach_watch.h"

#include <optional>
#include <utility>

namespace dws {
namespace {

// Forgets what leads to `newest`, from full tensors or from digests.
void ForgetWay(shared::VersionCatalog& catalog, WeightVersion newest) {
  std::optional<WeightVersion> at = newest;
  while (at.has_value()) {
    const shared::ManifestPtr there = catalog.versions().Find(*at);
    if (there == nullptr) return;
    catalog.Forget(*at);
    at = there->is_anchor() ? std::nullopt : there->base;  // smaller
  }
}

}  // namespace

Status ReachWatch::Look(shared::VersionCatalog& catalog, WeightVersion newest, TimePoint now,
                        const std::function<void()>& on_read) {
  if (!look_at_.has_value()) look_at_ = now + kInterval;
  if (now < *look_at_) return OkStatus();
  ForgetWay(catalog, newest);
  DWS_RETURN_IF_ERROR(catalog.Refresh(on_read));
  const Status reached = catalog.versions().FromAnchor(newest).status();
  const bool found = absl::IsAborted(reached);  // else there are digests, or a way
  if (found && !catalog.all_answered()) {
    return UnavailableError("{}: {}", Message(reached), Message(catalog.trouble()));
  }
  const bool again = std::exchange(found_, found);
  cut_off_ = found && again ? reached : OkStatus();
  look_at_ = now + (found && !again ? kAgain : kInterval);
  return OkStatus();
}

}  // namespace dws
