// A follower with its folder of versions, its checkpoint, and an engine that answers as a test
// says.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/formats/safetensors/checkpoint_index.h"
#include "receiver_daemon/follower/slime_follower.h"
#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws {

namespace fs = std::filesystem;
using Catch::Contains;
using slime::Weights;

class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return now; }
  TimePoint now{std::chrono::hours(1)};
};

// An engine whose calls return what `answers` says, or OK.
struct Engine {
  std::map<std::string, Status> answers;  // by the name of the call
  std::vector<std::string> calls;         // since the last Look()
  bool paused = false;
  std::string checksum = "{}";
  std::function<void()> on_pause = [] {};
  std::function<void()> on_load = [] {};

  Status Call(const std::string& name) {
    calls.push_back(name);
    return answers[name];
  }
  std::vector<std::string> Look() { return std::exchange(calls, {}); }
};

class Control final : public EngineControl {
 public:
  explicit Control(Engine& engine) : engine_(engine) {}

  Status Pause(Duration) override {
    engine_.on_pause();
    engine_.paused = true;  // even when the call then fails
    return engine_.Call("pause");
  }
  Status PostCommit(WeightVersion version, Duration) override {
    engine_.on_load();
    return engine_.Call("load " + std::to_string(version.value()));
  }
  Status Resume(const EngineVersion& version) override {
    engine_.paused = false;
    return engine_.Call("resume " + std::to_string(version.version.value()));
  }
  Status Check(WeightVersion, Duration) override { return engine_.Call("check"); }
  Status Tell(WeightVersion version, Duration) override {
    return engine_.Call("tell " + std::to_string(version.value()));
  }
  Status Reports(WeightVersion version, Duration) override {
    return engine_.Call("reports " + std::to_string(version.value()));
  }
  Result<std::string> Checksum(Duration) override {
    DWS_RETURN_IF_ERROR(engine_.Call("checksum"));
    return engine_.checksum;
  }

 private:
  Engine& engine_;
};

using Calls = std::vector<std::string>;

// A folder of versions, a checkpoint that follows it, and an engine that loads the checkpoint.
struct Job {
  Job() {
    fs::create_directories(versions);
    slime::WriteBase(local, weights);
  }

  // Publishes the trainer's next version, or with another `seed` one of another run.
  void Publish(uint64_t version, uint64_t seed = 1) {
    Weights next = slime::Next(weights, 1000 * seed + version);
    slime::Publish(versions, weights, next, {.version = version});
    weights = std::move(next);
  }
  void PublishFull(uint64_t version) {
    weights = slime::Next(weights, version);
    slime::WriteBase(PathOf(version), weights);
    // Files written in one tick of the file system's clock have equal times; those of a real
    fs::last_write_time(IndexOf(version),
                        fs::last_write_time(IndexOf(version)) + std::chrono::seconds(1));
  }
  std::string PathOf(uint64_t version) const {
    return versions + "/" + slime::VersionFolderName(version);
  }
  std::string IndexOf(uint64_t version) const {
    return PathOf(version) + "/" + safetensors::kIndexFile;
  }
  // What the engine has loaded, as the receiver records it.
  std::string RecordPath() const { return local + "/.weight_sync/dws_engine"; }
  std::string StatePath() const { return local + "/.weight_sync/state.json"; }
  void Damage(uint64_t version) { dws::testing::WriteText(IndexOf(version), "{"); }

  std::unique_ptr<SlimeFollower> Follow(bool with_engine = true) {
    EngineLoader::MakeControl make_control;
    if (with_engine) {
      make_control = [this]() -> Result<std::unique_ptr<EngineControl>> {
        DWS_RETURN_IF_ERROR(engine.Call("connect"));
        return std::unique_ptr<EngineControl>(std::make_unique<Control>(engine));
      };
    }
    return std::make_unique<SlimeFollower>(
        SlimeFollower::Parts{.files = files,
                             .pool = pool,
                             .clock = clock,
                             .make_control = std::move(make_control),
                             .on_readiness =
                                 [this](bool now, const std::string& why) {
                                   ready = now;
                                   reason = why;
                                 }},
        SlimeFollower::Options{.folder = versions,
                               .checkpoint = local,
                               .engine = url,
                               .poll = std::chrono::milliseconds(1),
                               .pause_timeout = std::chrono::seconds(1),
                               .before_read = before_read,
                               .before_read_required = required,
                               .proof = proof});
  }

  TempFolder folder;
  const std::string versions = folder.File("versions");
  const std::string local = folder.File("local");
  Weights weights = slime::RandomWeights(1);
  PosixFileSystem files;
  ThreadPool pool{2};
  ManualClock clock;
  Engine engine;
  std::string url = "http://engine";
  bool ready = false;
  std::string reason;
  slime::ProofRule proof = slime::ProofRule::kFolder;
  shared::VisibilityHook before_read;
  bool required = false;
};

inline std::string Text(const Status& status) { return ToString(status); }

}  // namespace dws
