#include "receiver_daemon/follower/follower_metrics.h"

namespace dws {
namespace {
double Number(uint64_t value) { return static_cast<double>(value); }
}  // namespace

void AddFollowerMetrics(Metrics& metrics, const SlimeFollower& follower) {
  // All values of a scrape are from one view, so they fit together.
  metrics.OnCollect([&follower](Scrape& scrape) {
    const FollowerView view = follower.view();
    if (view.version.has_value()) {
      scrape.Gauge("dws_follower_version", "Version of the local checkpoint.",
                   Number(*view.version));
    }
    if (view.loaded.has_value()) {
      scrape.Gauge("dws_follower_loaded_version", "Version that the engine was last told to load.",
                   Number(*view.loaded));
    }
    scrape.Gauge("dws_follower_newest_version", "Newest version in the folder.",
                 Number(view.newest));
    if (view.lag_known()) {
      scrape.Gauge("dws_follower_version_lag",
                   "How far the engine's version, or without an engine the checkpoint's, is behind "
                   "the newest that was seen in the folder.",
                   Number(view.lag()));
    }
    scrape.Gauge("dws_follower_unproved",
                 "1 while the next version is refused because nothing proves its base.",
                 view.unproved ? 1 : 0);
    scrape.Gauge("dws_follower_incomplete",
                 "1 while a version in the folder is not complete, and is waited for.",
                 view.waits_for.empty() ? 0 : 1);
    scrape.Gauge("dws_follower_failing", "1 while the last look at the folder failed.",
                 view.trouble.empty() ? 0 : 1);
    scrape.Gauge(
        "dws_follower_seconds_failing",
        "How long all looks at the folder have failed, or found an incomplete version that "
        "does not change; 0: the last did not.",
        view.seconds_failing);
    scrape.Gauge(
        "dws_follower_seconds_since_version",
        "Time since another version was applied to the local checkpoint, or since the start.",
        view.seconds_since_version);
    scrape.Counter("dws_follower_applied_total", "Versions applied to the local checkpoint.",
                   Number(view.applied));
    scrape.Counter("dws_follower_applied_tensors_total", "Changed tensors of those versions.",
                   Number(view.applied_tensors));
    scrape.Counter("dws_follower_loads_total", "Times that the engine loaded the checkpoint.",
                   Number(view.loads));
    scrape.Gauge("dws_follower_pause_seconds", "How long the engine was paused for its last load.",
                 view.last_pause_seconds);
    scrape.Gauge("dws_follower_apply_seconds", "How long the last version took to apply.",
                 view.last_apply_seconds);
  });
}

}  // namespace dws
