// EngineControl over an engine's own HTTP server, for engines that load their weights from a local
// checkpoint. The follower patches the checkpoint while the engine runs; PostCommit makes the
// paused engine load it. Nothing here writes to live weights: that needs a lease (lease_control.h).
//
// What happens after a failure ("load" is EngineLoader::Load, from Pause to Resume):
//
//   failure in    engine's weights       engine is      what follows
//   Pause         old                    paused or not  the load gives up and calls Resume: the
//                                                       engine continues with the old version
//   Pause         unknown: no load of    paused or not  Resume is not called; the next load pauses
//                 this process finished                 the engine again
//   PostCommit    old, new, or a mix;    paused         the engine stays paused, and the reason is
//                 it may still load                     reported. The checkpoint is complete, so
//                                                       the next load pauses again, loads all of
//                                                       it and resumes
//   PostCommit,   old, new, or a mix;    paused         the engine stays paused until it is
//   refused by    workers may still                     restarted: the answer to a second load may
//   vLLM          load                                  be what is left of the first one's
//   Tell          new                    paused         as of PostCommit; loading again does no
//                                                       harm
//   Resume        new; old if this is    paused or not  repeated until Options::resume_timeout,
//                 after a failed Pause                  then as above. If the reply is lost the
//                                                       engine may be running
//   this process  any                    any            the next start loads before anything else:
//   or machine                                          it pauses, loads and resumes
//   the engine    none                   gone           no connection until it is restarted; then
//                                                       it has loaded some version by itself. Check
//                                                       notices both if the engine reports its
//                                                       version, else only a lost connection
//
// All calls may be repeated: pausing a paused engine, loading a loaded version, resuming a running
// engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/threads/liveness.h"
#include "common/model/limits.h"
#include "receiver_daemon/engine/engine_control.h"
#include "receiver_daemon/engine_http/engine_call.h"
#include "receiver_daemon/engine_http/engine_kind.h"
#include "receiver_daemon/engine_http/http_client.h"
#include "receiver_daemon/engine_http/probe.h"

namespace dws {

// Owns its client. Threads: one at a time, as EngineControl.
class HttpControl final : public EngineControl {
 public:
  struct Options {
    std::string checkpoint;  // its path as the engine sees it, which may differ from ours
    PauseMode mode = PauseMode::kRetract;
    Duration resume_timeout = limits::kEngineCallDeadline;
    Liveness* liveness = nullptr;  // marked as waiting during calls; may be null
  };

  HttpControl(std::unique_ptr<HttpClient> client, const EngineProbe& probe, Options options);

  // Messages name the engine, the URL and the endpoint. In addition to the codes of EngineControl:
  // FAILED_PRECONDITION: the engine refuses; the message has the engine's. ABORTED: vLLM refuses a
  // load.
  Status Pause(Duration timeout) override;
  Status PostCommit(WeightVersion version, Duration timeout) override;
  Status Resume(const EngineVersion& version) override;
  // Compares the version if the engine reports one; otherwise checks only that the engine answers.
  Status Check(WeightVersion version, Duration timeout) override;

  Status Tell(WeightVersion version, Duration timeout) override;
  Status Reports(WeightVersion version, Duration timeout) override;
  // What its checker of weights answers.
  Result<std::string> Checksum(Duration timeout) override;

 private:
  Status Run(const char* step, const std::vector<EngineCall>& calls, TimePoint deadline,
             bool may_give_up);
  TimePoint After(Duration timeout) const;
  Status Name(const char* step, const Status& status) const;

  const std::unique_ptr<HttpClient> client_;
  const Options options_;
  const EngineSetup setup_;
};

// What MakeHttpControl needs to reach an engine and to choose its plan.
struct HttpControlOptions {
  HttpClient::Options client;
  std::string kind;        // "sglang", "vllm"; "": find out
  std::string mode;        // in the form that ParsePauseMode takes
  std::string checkpoint;  // see HttpControl::Options
  Duration probe_timeout = limits::kEngineCallDeadline;
  Duration resume_timeout = limits::kEngineCallDeadline;
  Liveness* liveness = nullptr;
};

// Probes the engine, logs what it can do, and returns its control. Errors as HttpClient::Create and
// ProbeEngine; INVALID_ARGUMENT also for an unknown `kind` and an empty `checkpoint`. Try again
// after UNAVAILABLE and DEADLINE_EXCEEDED: an engine may take minutes to start.
Result<std::unique_ptr<HttpControl>> MakeHttpControl(HttpControlOptions options,
                                                     const Clock& clock);

}  // namespace dws
