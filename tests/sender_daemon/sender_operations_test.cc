// The operator's calls and the metrics of a sender. All parts are real except the trainer and the
// receivers' streams.
#include "sender_daemon/app/sender_operations.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/service/metrics/status_metrics.h"
#include "sender_daemon/serve/announcement_sink.h"
#include "sender_daemon/views/view_snapshot.h"
#include "tests/fakes/eventually.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};

class SilentConnection final : public SyncConnection {
 public:
  void WelcomeDue() override {}
  void AnnounceDue() override {}
  void KeepaliveDue() override {}
  void Close(const Status&) override {}
};

class Fixture {
 public:
  Fixture() {
    sinks.push_back(std::make_unique<AnnouncementSink>(hub));
    metrics.registry().OnCollect([this](Scrape& scrape) { WriteStatusMetrics(Status(), scrape); });
  }
  ~Fixture() { pipeline.Stop(); }

  void Publish(uint64_t version, double density = 0.01) {
    Perturb(weights, density, random);
    REQUIRE(pipeline.Reserve(limits::kRpcDeadline).ok());
    pipeline.Submit({.state = state, .captured = CaptureAll(*state, pool, version, weights)});
    REQUIRE(pipeline.Drain(limits::kRpcDeadline).ok());
  }
  ConnectionId Connect(const std::string& id, const std::string& view = "") {
    auto connection = hub.Connect("job", id, std::make_shared<SilentConnection>(), view);
    REQUIRE(connection.ok());
    return *connection;
  }
  void Commit(ConnectionId receiver, uint64_t version, double stage_seconds = 0,
              double pause_seconds = 0) {
    const RetainedVersionPtr published = state->log->Find(WeightVersion(version));
    REQUIRE(published != nullptr);
    hub.OnCommitted(receiver, state->stream,
                    {.version = WeightVersion(version),
                     .state_token = published->manifest.state_token,
                     .pause_seconds = pause_seconds,
                     .stage_seconds = stage_seconds});
  }
  v1::StatusReply Reply() const {
    v1::StatusReply reply;
    operations.FillStatus(reply);
    return reply;
  }
  v1::SenderStatus Status() const { return Reply().sender(); }
  v1::DrainState DrainState() const { return Reply().drain(); }
  std::string Text() const { return metrics.registry().Text(); }
  bool Shows(const std::string& sample) const {
    return Text().find(sample + "\n") != std::string::npos;
  }

  std::mt19937_64 random{Catch::rngSeed()};
  RealClock clock;
  Lifecycle lifecycle;
  SenderMetrics metrics{"job", 3};
  ThreadPool pool{1};
  Executor executor{1, 100};
  DrainSwitch drain;
  VersionHistory history{kSystemWallClock};
  ReceiverHub hub{clock, "job", Duration::zero(), nullptr,
                  [this](const AcknowledgedCommit& report) { history.OnCommitted(report); }};
  VersionSinks sinks;
  FabricHost fabric{{}, clock};
  PublishPipeline pipeline{
      {.record = [](const RankState&, const RetainedVersion&) { return OkStatus(); },
       .announce = [](const RankStatePtr&) {},
       .on_trouble = [](const dws::Status&) {},
       .on_published =
           [this](const RankState& rank, const RetainedVersion& version) {
             metrics.OnPublished(rank, version);
             history.OnPublished(rank, version);
           }}};
  TrainerSession session{{.job_id = "job"},
                         {.clock = &clock, .pipeline = &pipeline, .drain = &drain}};
  RankStatePtr state = MakeState(SmallLayout(), kLimits);
  Weights weights = RandomWeights(state->layout(), random);
  std::atomic<int> turned{0};
  SenderOperations operations{{.job_id = "job", .trainer_rank = 3, .log_limits = kLimits},
                              {.lifecycle = lifecycle,
                               .hub = hub,
                               .session = session,
                               .pipeline = pipeline,
                               .clock = clock,
                               .metrics = metrics,
                               .drain = drain,
                               .on_drain = [this] { ++turned; },
                               .failure = [] { return std::nullopt; },
                               .sinks = sinks,
                               .fabric = fabric,
                               .history = history,
                               .forget_stream = {}}};
};

// The progress that an operation reported, and its result.
struct Told {
  std::vector<v1::OperationProgress> messages;
  Status status;
  const v1::OperationProgress& last() const { return messages.back(); }
};

Told Verify(Fixture& sender) {
  Told told;
  told.status = sender.operations.Verify([&](const v1::OperationProgress& message) {
    told.messages.push_back(message);
    return true;
  });
  return told;
}

TEST_CASE("verify compares the whole snapshot and names the slices that differ",
          "[sender_operations]") {
  Fixture sender;
  CHECK(Verify(sender).status.code() == absl::StatusCode::kFailedPrecondition);
  sender.hub.Welcome(sender.state);
  CHECK(Verify(sender).status.code() == absl::StatusCode::kFailedPrecondition);
  sender.Publish(1);
  sender.Publish(2);
  const Told good = Verify(sender);
  REQUIRE(good.status.ok());
  CHECK(good.last().finished());
  CHECK(good.last().version() == 2);
  CHECK(good.last().mismatches() == 0);
  CHECK(good.last().done_bytes() == sender.state->layout().size_bytes());

  sender.state->snapshot->SliceBytes(RankSlice(2))[7] ^= std::byte{4};
  const Told bad = Verify(sender);
  REQUIRE(bad.status.ok());
  CHECK(bad.last().mismatches() == 1);
  REQUIRE(bad.last().mismatched_size() == 1);
  CHECK(bad.last().mismatched(0).tensor() == "b");
  CHECK(bad.last().mismatched(0).rank_slice() == 2);
  CHECK(bad.last().mismatched(0).found().SerializeAsString() !=
        bad.last().mismatched(0).expected().SerializeAsString());
  CHECK(sender.Shows(R"(dws_sender_verify_mismatches_total{dws_job="job",trainer_rank="3"} 1)"));
}

TEST_CASE("verify stops when its caller hangs up", "[sender_operations]") {
  Fixture sender;
  sender.hub.Welcome(sender.state);
  sender.Publish(1);
  const Status status =
      sender.operations.Verify([](const v1::OperationProgress&) { return false; });
  CHECK(status.code() == absl::StatusCode::kCancelled);
}

TEST_CASE("a resync call to a sender is refused and names the receivers", "[sender_operations]") {
  Fixture sender;
  const Status status =
      sender.operations.Resync({}, [](const v1::OperationProgress&) { return true; });
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(Message(status)), Catch::Contains("receiver"));
}

TEST_CASE("an absent receiver is forgotten and a connected or unknown one is refused",
          "[sender_operations]") {
  Fixture sender;
  sender.Connect("near");
  sender.hub.Disconnect(sender.Connect("gone"));
  Told told;
  const auto evict = [&](const std::string& id) {
    v1::EvictRequest request;
    request.set_receiver_id(id);
    return sender.operations.Evict(request, [&](const v1::OperationProgress& message) {
      told.messages.push_back(message);
      return true;
    });
  };
  CHECK(absl::IsFailedPrecondition(evict("")));
  CHECK(absl::IsFailedPrecondition(evict("near")));
  CHECK(absl::IsNotFound(evict("nobody")));
  REQUIRE(evict("gone").ok());
  CHECK(told.last().finished());
  CHECK(sender.hub.Receivers().size() == 1);
}

TEST_CASE("a drain refuses new versions and ends once every connected receiver has the newest",
          "[sender_operations]") {
  Fixture sender;
  sender.hub.Welcome(sender.state);
  sender.Publish(1);
  const ConnectionId near = sender.Connect("near");
  const ConnectionId gone = sender.Connect("gone");
  sender.hub.Disconnect(gone);  // so that the drain does not wait for it
  CHECK(sender.DrainState() == v1::DRAIN_STATE_NONE);

  Mutex mutex;
  std::vector<v1::OperationProgress> told;
  auto draining = std::async(std::launch::async, [&] {
    return sender.operations.Drain({}, [&](const v1::OperationProgress& message) {
      MutexLock lock(mutex);
      told.push_back(message);
      return true;
    });
  });
  REQUIRE(Eventually([&] {
    MutexLock lock(mutex);
    return !told.empty() &&
           told.back().step().find("'near' to commit version 1") != std::string::npos;
  }));
  CHECK(sender.DrainState() == v1::DRAIN_STATE_DRAINING);
  CHECK(sender.turned == 1);
  const Status refused = sender.session.Register({}).status();
  CHECK(refused.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(Message(refused)), Catch::Contains("dwsctl undrain"));

  sender.Commit(near, 1);
  REQUIRE(draining.get().ok());
  CHECK(told.back().finished());
  CHECK(sender.DrainState() == v1::DRAIN_STATE_DRAINED);

  v1::DrainRequest undo;
  undo.set_undo(true);
  CHECK(sender.operations.Drain(undo, [](const v1::OperationProgress&) { return true; }).ok());
  CHECK(sender.DrainState() == v1::DRAIN_STATE_NONE);
  CHECK(sender.session.Register({}).status().code() != absl::StatusCode::kUnavailable);
}

TEST_CASE("a drain continues without its caller and undoing it ends the waiting calls",
          "[sender_operations]") {
  Fixture sender;
  sender.hub.Welcome(sender.state);
  sender.Publish(1);
  sender.Connect("late");
  CHECK(sender.operations.Drain({}, [](const v1::OperationProgress&) { return false; }).code() ==
        absl::StatusCode::kCancelled);
  CHECK(sender.DrainState() == v1::DRAIN_STATE_DRAINING);
  auto waiting = std::async(std::launch::async, [&] {
    return sender.operations.Drain({}, [](const v1::OperationProgress&) { return true; });
  });
  REQUIRE(Eventually([&] { return sender.turned == 2; }));
  v1::DrainRequest undo;
  undo.set_undo(true);
  CHECK(sender.operations.Drain(undo, [](const v1::OperationProgress&) { return true; }).ok());
  CHECK(waiting.get().code() == absl::StatusCode::kAborted);
}

TEST_CASE("the status and the metrics show the published versions and the lagging receivers",
          "[sender_operations]") {
  Fixture sender;
  sender.hub.Welcome(sender.state);
  CHECK_FALSE(sender.Status().has_seconds_since_version());
  const ConnectionId receiver = sender.Connect("r");
  for (uint64_t version = 1; version <= 3; ++version) sender.Publish(version);
  sender.Commit(receiver, 1, 0.5);
  sender.hub.OnNack(receiver, Nonce(77), sender.state->stream, "digest");
  sender.metrics.OnNack(15);
  sender.metrics.OnNack(4'000'000'000);

  const v1::SenderStatus status = sender.Status();
  CHECK(status.retain_bytes_max() == kLimits.bytes_max);
  CHECK(status.retain_versions_max() == kLimits.versions_max);
  REQUIRE(status.versions_size() == 3);
  CHECK(status.versions(0).committed() == 1);
  CHECK(status.versions(1).committed() == 0);
  CHECK(status.versions(2).age_seconds() > 0);
  CHECK(status.seconds_since_version() == status.versions(2).age_seconds());
  CHECK(status.receivers(0).nacks() == 1);
  CHECK(status.receivers(0).stage_seconds() == 0.5);

  const std::string labels = R"({dws_job="job",trainer_rank="3"})";
  CHECK(sender.Shows("dws_sender_published_versions_total" + labels + " 3"));
  CHECK(sender.Shows("dws_sender_newest_version" + labels + " 3"));
  CHECK(sender.Shows("dws_sender_retained_versions" + labels + " 3"));
  CHECK(sender.Text().find("\ndws_sender_seconds_since_version" + labels) != std::string::npos);
  CHECK(sender.Shows(
      R"(dws_sender_receiver_lag_versions{dws_job="job",trainer_rank="3",receiver_id="r"} 2)"));
  CHECK(sender.Shows(R"(dws_sender_receivers{dws_job="job",trainer_rank="3",state="present"} 1)"));
  CHECK(sender.Shows(
      R"(dws_sender_nacks_total{dws_job="job",trainer_rank="3",reason="data_loss"} 1)"));
  CHECK(
      sender.Shows(R"(dws_sender_nacks_total{dws_job="job",trainer_rank="3",reason="unknown"} 1)"));
}

TEST_CASE("the status has the figures of each published version and the longest pause for it",
          "[sender_operations]") {
  Fixture sender;
  sender.hub.Welcome(sender.state);
  const ConnectionId near = sender.Connect("near");
  const ConnectionId far = sender.Connect("far");
  const ConnectionId liar = sender.Connect("liar");
  CHECK(sender.Status().history_size() == 0);
  sender.Publish(1);
  sender.Publish(2);
  sender.Commit(near, 1, 0.5, 0.002);
  sender.Commit(near, 2, 0.5, 0.002);
  sender.Commit(far, 2, 2.5, 0.001);
  sender.Commit(liar, 2, -1, 1e300);  // counts as a report without figures
  sender.Commit(far, 2);              // repeated after a reconnect, without figures

  const v1::SenderStatus status = sender.Status();
  REQUIRE(status.history_size() == 2);
  const v1::PublishedVersion& first = status.history(0);
  CHECK(first.version() == 1);
  CHECK(first.unix_seconds() > 1.6e9);
  CHECK_FALSE(first.has_density_ratio());
  CHECK(first.wire_bytes() == first.full_bytes());
  CHECK(first.commits() == 1);
  CHECK(first.pause_seconds_max() == 0.002);
  const v1::PublishedVersion& second = status.history(1);
  CHECK(second.version() == 2);
  CHECK(second.full_bytes() == sender.state->layout().size_bytes());
  CHECK(second.wire_bytes() == status.versions(1).wire_bytes());
  CHECK(second.density_ratio() == status.density_ratio());
  CHECK(second.capture_seconds() == status.versions(1).capture_seconds());
  CHECK(second.commits() == 2);
  CHECK(second.pause_seconds_max() == 0.002);
  CHECK(second.stage_seconds_max() == 2.5);
}

TEST_CASE("a report of a version that the history no longer has changes nothing",
          "[sender_operations]") {
  Fixture sender;
  VersionHistory history(kSystemWallClock);
  sender.Publish(1);
  const RetainedVersionPtr one = sender.state->log->Newest();
  const auto rows = [&history] {
    v1::SenderStatus status;
    history.Fill(status);
    return status.history();
  };
  for (size_t i = 0; i < kHistoryVersionsMax; ++i) {
    RetainedVersion version = *one;
    version.version = WeightVersion(5 + i);
    history.OnPublished(*sender.state, version);
  }
  RetainedVersion of_new_stream = *one;
  of_new_stream.version = WeightVersion(3);
  history.OnPublished(*sender.state, of_new_stream);
  REQUIRE(rows().size() == kHistoryVersionsMax);
  CHECK(rows()[0].version() == 6);  // the oldest is dropped

  history.OnCommitted({.version = WeightVersion(5), .pause_seconds = 1});
  history.OnCommitted({.version = WeightVersion(7), .pause_seconds = 1});  // of the old stream
  for (const v1::PublishedVersion& row : rows()) CHECK(row.commits() == 0);
  history.OnCommitted({.version = WeightVersion(3), .pause_seconds = 1});
  CHECK(rows().rbegin()->commits() == 1);
}

TEST_CASE(
    "of many receivers the status and the metrics show those in trouble, and how many there are",
    "[sender_operations]") {
  Fixture sender;
  sender.hub.Welcome(sender.state);
  for (uint64_t version = 1; version <= 2; ++version) sender.Publish(version);
  for (int i = 0; i < 500; ++i) {
    const ConnectionId receiver = sender.Connect(fmt::format("r-{:03}", i));
    if (i != 400) sender.Commit(receiver, 2);
    if (i == 450) {
      sender.hub.OnNack(receiver, sender.hub.NextNonce(receiver, true), sender.state->stream,
                        "digest");
    }
    if (i == 499) sender.hub.Disconnect(receiver);
  }
  const v1::SenderStatus status = sender.Status();
  CHECK(status.receivers_present() == 499);
  CHECK(status.receivers_absent() == 1);
  CHECK(status.versions(1).committed() == 498);
  REQUIRE(status.receivers_size() == 64);
  const std::vector<std::pair<int, std::string>> ids{
      {0, "r-000"}, {60, "r-060"}, {61, "r-400"}, {62, "r-450"}, {63, "r-499"}};
  for (const auto& [at, id] : ids) CHECK(status.receivers(at).receiver_id() == id);
  CHECK(status.receivers(61).lag_versions() == 2);
  CHECK(status.receivers(62).last_error() == "digest");
  CHECK_FALSE(status.receivers(63).present());

  const std::string text = sender.Text();
  size_t labels = 0;
  for (size_t at = 0; (at = text.find("receiver_id=", at)) != text.npos; ++at) ++labels;
  CHECK(labels == 4 * 64);
  CHECK(text.find(R"(receiver_id="r-200")") == std::string::npos);
}

TEST_CASE("the status and the metrics show the views that receivers follow",
          "[sender_operations]") {
  constexpr const char* kView = "fp8-channel/vllm";
  Fixture sender;
  sender.hub.Welcome(sender.state);
  const std::string labels = R"({dws_job="job",trainer_rank="3"})";
  CHECK(sender.Status().views().empty());
  CHECK(sender.Shows("dws_sender_views" + labels + " 0"));
  auto view = ViewSnapshot::Create(kView, sender.state, kLimits);
  REQUIRE(view.ok());
  ViewSnapshot& kept = **view;
  sender.hub.SetView(kView, kept.state());
  const ConnectionId follower = sender.Connect("quantised", kView);
  sender.Connect("plain");
  for (uint64_t version = 1; version <= 2; ++version) {
    sender.Publish(version);
    kept.state()->log->Append(
        Seal({.state = kept.state(),
              .captured = kept.CaptureVersion(WeightVersion(version), nullptr, sender.pool)}));
  }
  const v1::SenderStatus status = sender.Status();
  REQUIRE(status.views_size() == 1);
  CHECK(status.views(0).name() == kView);
  CHECK(status.views(0).newest_version() == 2);
  CHECK(status.views(0).receivers() == 1);
  CHECK(status.views(0).snapshot_bytes() == kept.state()->snapshot->memory().places().size_bytes());
  CHECK(status.views(0).retained_bytes() == kept.state()->log->Newest()->object.size());
  REQUIRE(status.receivers_size() == 2);
  CHECK(status.receivers(0).view().empty());
  CHECK(status.receivers(1).view() == kView);
  const auto shows = [&](const std::string& name, uint64_t value) {
    return sender.Shows(name + labels + " " + std::to_string(value));
  };
  CHECK(shows("dws_sender_views", 1));
  CHECK(shows("dws_sender_view_snapshot_bytes", status.views(0).snapshot_bytes()));
  CHECK(shows("dws_sender_view_retained_bytes", status.views(0).retained_bytes()));

  sender.hub.Disconnect(follower);
  CHECK(sender.Status().views(0).receivers() == 0);
  CHECK(sender.Status().receivers(1).view().empty());
  sender.hub.SetView(kView, nullptr);
  CHECK(sender.Status().views().empty());
}

TEST_CASE("the status and the metrics name the groups that change nearly everywhere",
          "[sender_operations]") {
  Fixture sender;
  sender.hub.Welcome(sender.state);
  sender.Publish(1);
  CHECK_FALSE(sender.Status().has_density());  // no delta yet
  sender.Publish(2);
  CHECK(sender.Status().density().groups() == 2);
  CHECK(sender.Status().density().dense_groups() == 0);
  CHECK_FALSE(sender.Status().density().version_dense());
  uint64_t wire_bytes = 0;
  for (uint64_t version = 3; version <= 4; ++version) {
    const std::vector<std::byte> kept = sender.weights[2];
    sender.weights = RandomWeights(sender.state->layout(), sender.random);
    sender.weights[2] = kept;  // few elements of b change
    sender.Publish(version, 0.001);
  }
  const RetainedVersionPtr newest = sender.state->log->Newest();
  for (const GroupDensity& group : newest->density.worst) wire_bytes += group.wire_bytes;
  const v1::DensityStatus status = sender.Status().density();
  CHECK(status.dense_groups() == 1);
  CHECK(status.dense_bytes() == wire_bytes);
  CHECK(status.version_dense());
  REQUIRE(status.worst_size() == 1);
  CHECK(status.worst(0).name() == "a");
  CHECK(status.worst(0).elements() == 300 * 1001);
  CHECK(status.worst(0).full_bytes() == 600 * 1001);
  CHECK(status.worst(0).changed() > 299 * 1001);
  CHECK(status.worst(0).wire_bytes() > 500 * 1001);
  const std::string labels = R"({dws_job="job",trainer_rank="3"})";
  CHECK(sender.Shows("dws_sender_dense_groups" + labels + " 1"));
  CHECK(sender.Shows("dws_sender_dense_version" + labels + " 1"));
  CHECK(sender.Shows("dws_sender_dense_bytes_total" + labels + " " + std::to_string(wire_bytes)));
}

TEST_CASE("wire bytes by encoding add up to the objects that travel", "[sender_operations]") {
  Fixture sender;
  sender.hub.Welcome(sender.state);
  for (uint64_t version = 1; version <= 4; ++version) {
    sender.Publish(version, version == 3 ? 2.0 : 0.01);
  }
  double travelled = 0;
  for (const RetainedVersionPtr& version : sender.state->log->All()) {
    travelled += static_cast<double>(version->object.size());
  }
  double counted = 0;
  int encodings = 0;
  std::istringstream text(sender.metrics.registry().Text());
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("dws_sender_wire_bytes_total{")) continue;
    const double bytes = std::stod(line.substr(line.rfind(' ')));
    counted += bytes;
    encodings += bytes > 0 ? 1 : 0;
  }
  CHECK(counted == travelled);
  CHECK(encodings >= 3);  // framing, sparse and dense blocks
}

}  // namespace
}  // namespace dws
