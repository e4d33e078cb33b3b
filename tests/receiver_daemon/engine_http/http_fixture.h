// A fake engine's server with a checkpoint of two versions, and the options to control it.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "receiver_daemon/engine_http/http_control.h"
#include "tests/fakes/engine_server/engine_server.h"
#include "tests/fakes/temp_folder.h"

namespace dws {

inline constexpr std::chrono::seconds kAmple{20};
inline constexpr std::chrono::milliseconds kBrief{400};
// What a loaded machine may add to a deadline.
inline constexpr std::chrono::seconds kSlack{5};

inline bool Says(const Status& status, std::string_view words) {
  return Message(status).find(words) != std::string_view::npos;
}

struct HttpFixture {
  explicit HttpFixture(std::string engine_kind) : kind(std::move(engine_kind)) {
    std::filesystem::create_directory(folder.File("checkpoint"));
    PatchCheckpoint(1);
  }

  std::string checkpoint() const { return folder.File("checkpoint"); }
  // What the receiver does to the local checkpoint inside the pause.
  void PatchCheckpoint(int version) const {
    WriteCheckpoint(checkpoint(), {{"embed", fmt::format("e{}", version)},
                                   {"head", fmt::format("h{}", version)}});
  }
  static nlohmann::json Tensors(int version) {
    return {{"embed", fmt::format("65{:02x}", '0' + version)},
            {"head", fmt::format("68{:02x}", '0' + version)}};
  }
  std::string WriteToken(const std::string& token, std::filesystem::perms allowed =
                                                       std::filesystem::perms::owner_read) const {
    const std::string path = folder.File("token");
    std::filesystem::remove(path);
    std::ofstream(path) << token;
    std::filesystem::permissions(path, allowed);
    return path;
  }

  EngineServer& Serve(EngineServer::Wish wish = {}) {
    wish.kind = kind;
    wish.model = checkpoint();
    server.reset();  // frees its port, which `wish` may ask for
    server = std::make_unique<EngineServer>(wish);
    return *server;
  }
  HttpControlOptions ControlOptions() const { return ControlOptions(server->url()); }
  HttpControlOptions ControlOptions(const std::string& url) const {
    return {.client = {.url = url},
            .kind = "",
            .mode = mode,
            .checkpoint = checkpoint(),
            .probe_timeout = kAmple,
            .resume_timeout = kAmple};
  }
  std::unique_ptr<HttpControl> Control(const HttpControlOptions& options) const {
    auto control = MakeHttpControl(options, clock);
    if (!control.ok()) FAIL(ToString(control.status()));
    return *std::move(control);
  }
  std::unique_ptr<HttpControl> Control() const { return Control(ControlOptions()); }

  // The three steps of a commit to `version`, with the checkpoint patched after the pause.
  Status Commit(HttpControl& control, int version, Duration timeout = kAmple) const {
    DWS_RETURN_IF_ERROR(control.Pause(timeout));
    PatchCheckpoint(version);
    const WeightVersion weight_version(static_cast<uint64_t>(version));
    DWS_RETURN_IF_ERROR(control.PostCommit(weight_version, timeout));
    DWS_RETURN_IF_ERROR(control.Tell(weight_version, timeout));
    return control.Resume({.stream = {}, .version = weight_version, .state_token = {}});
  }

  RealClock clock;
  TempFolder folder;
  const std::string kind;
  std::string mode;
  std::unique_ptr<EngineServer> server;
};

// Elapsed time, to check that every wait ends by its deadline.
class Stopwatch {
 public:
  explicit Stopwatch(const Clock& clock) : clock_(clock), begin_(clock.Now()) {}
  Duration elapsed() const { return clock_.Now() - begin_; }

 private:
  const Clock& clock_;
  const TimePoint begin_;
};

}  // namespace dws
