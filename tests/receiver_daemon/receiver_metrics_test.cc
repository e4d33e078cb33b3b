// A receiver's metrics from the first attach to a repair, as Prometheus reads them.
#include "receiver_daemon/app/receiver_metrics.h"

#include <catch2/catch.hpp>
#include <string>

#include "common/service/metrics/status_metrics.h"
#include "receiver_daemon/app/receiver_status.h"
#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {
namespace {

const std::string kLabels = "dws_job=\"job\",receiver_id=\"r\"";

// The value of one sample; "" when there is none.
std::string Sample(const ReceiverMetrics& metrics, const std::string& name,
                   const std::string& label = "") {
  const std::string text = "\n" + metrics.registry().Text();
  for (const std::string& labels : {kLabels + (label.empty() ? "" : "," + label),
                                    "dws_job=\"job\"," + label + "," + kLabels.substr(14)}) {
    const std::string start = "\n" + name + "{" + labels + "} ";
    if (const size_t at = text.find(start); at != std::string::npos) {
      const size_t begin = at + start.size();
      return text.substr(begin, text.find('\n', begin) - begin);
    }
  }
  return "";
}

void Show(ReceiverMetrics& metrics, Daemon& daemon, FakeTrainer& trainer) {
  metrics.registry().OnCollect([&](Scrape& scrape) {
    v1::ReceiverStatus status;
    FillReceiverStatus("r", daemon.worker.status(), daemon.subscription, daemon.registry,
                       trainer.sources(), daemon.clock.Now(), status);
    WriteStatusMetrics(status, scrape);
  });
}

}  // namespace

TEST_CASE("a receiver's metrics are right from the first attach to a repair", "[metrics]") {
  ReceiverMetrics metrics("job", "r");
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger, [&](const CommitReport& report) { metrics.OnCommit(report); });
  Show(metrics, daemon, trainer);
  const auto value = [&](const std::string& name, const std::string& label = "") {
    return Sample(metrics, "dws_receiver_" + name, label);
  };
  CHECK(value("senders", "state=\"configured\"") == "1");
  CHECK(value("senders", "state=\"connected\"") == "0");
  CHECK(value("nacks_total", "reason=\"data_loss\"") == "0");
  CHECK(value("digest_mismatches_total", "source=\"verify\"") == "0");
  CHECK(value("digest_mismatches_total", "source=\"scrub\"") == "0");
  CHECK(value("scrubbed_bytes_total") == "0");
  CHECK(value("scrub_last_pass_timestamp_seconds") == "0");
  CHECK(value("scrub_pass_target_seconds") == "0");  // no scrub runs
  CHECK(value("density_ratio").empty());
  CHECK(std::stod(value("seconds_without_sender")) > 0);
  daemon.clock.Jump(std::chrono::seconds(50));
  CHECK(std::stod(value("seconds_since_version")) >= 50);

  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  REQUIRE(daemon.worker.Step().ok());
  CHECK(value("engine_ranks", "state=\"attached\"") == "1");
  CHECK(value("engine_paused") == "1");
  CHECK(std::stod(value("engine_paused_seconds")) > 0);

  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(value("engine_paused") == "0");
  CHECK(value("committed_version") == "1");
  CHECK(std::stod(value("seconds_since_version")) < 50);
  CHECK(value("seconds_without_sender") == "0");
  CHECK(value("repairs_total") == "1");
  CHECK(value("fetched_bytes_total", "kind=\"delta\"") == "0");
  CHECK(value("digest_mismatches_total", "source=\"attach\"") == "2");
  CHECK(value("pause_seconds_count") == "0");  // it was already paused
  CHECK(std::stod(value("last_commit_timestamp_seconds")) > 1.6e9);

  daemon.Offer({1, trainer.Publish()});
  CHECK(value("version_lag") == "1");
  trainer.damage_object = [](std::vector<std::byte>& object) { object.back() ^= std::byte{1}; };
  REQUIRE(daemon.worker.Step().ok());
  trainer.damage_object = [](auto&) {};
  CHECK(value("version_lag") == "0");
  CHECK(value("commits_total") == "2");
  CHECK(value("pause_seconds_count") == "1");
  CHECK(value("fetch_seconds_count") == "2");
  CHECK(value("nacks_total", "reason=\"data_loss\"") == "1");

  daemon.Offer({1, 2, trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(std::stod(value("density_ratio")) > 0);
  CHECK(std::stod(value("fetched_bytes_total", "kind=\"delta\"")) > 0);
  CHECK(value("full_bytes_total") == std::to_string(3 * (140'000 + 4 * 99)));

  client.created.region.mutable_bytes()[0] ^= std::byte{1};
  REQUIRE(daemon.requests.Verify().ok());
  REQUIRE(daemon.worker.Step().ok());
  CHECK(value("digest_mismatches_total", "source=\"verify\"") == "1");
}

TEST_CASE("each commit is counted in each stage of a version's time", "[metrics]") {
  ReceiverMetrics metrics("job", "r");
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger, [&](const CommitReport& report) { metrics.OnCommit(report); });
  daemon.on_acknowledged = [&](Duration took) { metrics.OnAcknowledged(took); };
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  daemon.Offer({1, trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  for (size_t i = 0; i < kVersionStages; ++i) {
    const auto stage = static_cast<VersionStage>(i);
    const std::string label = fmt::format("stage=\"{}\"", NameOf(stage));
    INFO(label);
    CHECK(Sample(metrics, "dws_receiver_version_seconds_count", label) == "2");
    const bool takes_time = stage == VersionStage::kFetch || stage == VersionStage::kGate ||
                            stage == VersionStage::kWrite || stage == VersionStage::kRecord;
    if (!takes_time) continue;
    CHECK(std::stod(Sample(metrics, "dws_receiver_version_seconds_sum", label)) > 0);
  }
}

TEST_CASE("the lag is that of the newest version heard of, or unknown, while there is no sender",
          "[metrics]") {
  ReceiverMetrics metrics("job", "r");
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  Show(metrics, daemon, trainer);
  const auto lag = [&] { return Sample(metrics, "dws_receiver_version_lag"); };
  CHECK(lag().empty());
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(lag() == "0");
  daemon.subscription.OnDisconnect(SenderIndex(0), UnavailableError("it is gone"));
  daemon.clock.Jump(std::chrono::seconds(1));
  CHECK(lag().empty());
  daemon.Connect();
  daemon.Offer({1, trainer.Publish(), trainer.Publish()});
  CHECK(lag() == "2");
  daemon.subscription.OnDisconnect(SenderIndex(0), UnavailableError("it is gone"));
  daemon.clock.Jump(std::chrono::seconds(1));
  CHECK(lag() == "2");
}

TEST_CASE("an engine on an earlier stream lags behind every version of the new stream",
          "[metrics]") {
  ReceiverMetrics metrics("job", "r");
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  Show(metrics, daemon, trainer);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  trainer.Publish();
  daemon.Offer({1, trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(Sample(metrics, "dws_receiver_version_lag") == "0");

  // A trainer starts a new stream.
  StreamId next = trainer.stream();
  ++next.incarnation;
  REQUIRE(daemon.subscription
              .OnWelcome(SenderIndex(0), {.stream = next,
                                          .trainer_rank = TrainerRank(0),
                                          .world_size = 1,
                                          .rank_epoch = RankEpoch(1),
                                          .layout = trainer.ranks()[0]})
              .ok());
  REQUIRE(
      daemon.subscription
          .OnAnnounce(SenderIndex(0), 99,
                      {.stream = next, .rank_epoch = RankEpoch(1), .versions = {WeightVersion(1)}})
          .ok());
  CHECK(Sample(metrics, "dws_receiver_committed_version") == "2");
  CHECK(Sample(metrics, "dws_receiver_version_lag") == "1");
}

}  // namespace dws
