// EngineControl over an engine's own HTTP server, for engines that load their weights from a local
// checkpoint: the commit patches the checkpoint while the engine is paused, and PostCommit makes
// the engine load it. It never writes to live weights: whoever does holds a lease
// (lease_control.h).
//
// Where it fails, what the engine is left with, and what follows:
//
//   in          weights in its memory    it is    what follows
//   Pause       old                      paused   the commit gives up and calls Resume: it goes on
//                                        or not   with the old version
//   Pause       not known: no load of    paused   it is not let run: the next commit pauses it
//               this process has ended   or not   again
//   PostCommit  old, new, or some of     paused   it stays paused, with the reason; the checkpoint
//     (reload)  each: it may still load           is whole, so the next commit pauses (again),
//     loads
//                                                 all of it and resumes
//   PostCommit  new                      paused   as above; loading again does no harm
//     (version told or read back)
//   Resume      whole: new, after a      paused   repeated until Options::resume_timeout; then as
//               failed Pause old         or not   above. No answer may mean that it runs
//   this process, or its machine:        paused   the next start commits before anything else, and
//     anywhere                                    so pauses, loads and resumes
//   the engine: anywhere                 none     no connection, until it is started again: then it
//                                                 has loaded something by itself. Check sees
//                                                 either, where it reports its version; else the
//                                                 first only
//
// All calls may be repeated: pausing what is paused, loading what is loaded, resuming what runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/pulse.h"
#include "common/model/limits.h"
#include "receiver_daemon/engine/engine_control.h"
#include "receiver_daemon/engine_http/engine_call.h"
#include "receiver_daemon/engine_http/engine_kind.h"
#include "receiver_daemon/engine_http/http_client.h"
#include "receiver_daemon/engine_http/probe.h"

namespace dws {

class HttpControl final : public EngineControl {
 public:
  struct Options {
    std::string checkpoint;  // as the engine finds it: it may see the folder elsewhere
    PauseMode mode = PauseMode::kAbort;
    Duration resume_timeout = limits::kEngineCallDeadline;
    Pulse* pulse = nullptr;  // waits while the engine is waited for; may be null
  };

  HttpControl(std::unique_ptr<HttpClient> client, const EngineProbe& probe, Options options);

  // Messages name the engine, the URL and the endpoint. Besides the codes of the seam
  // FAILED_PRECONDITION: the engine refuses, with its words.
  Status Pause(Duration timeout) override;
  Status PostCommit(WeightVersion version, Duration timeout) override;
  Status Resume(const EngineVersion& version) override;
  // By its version where it reports one, else by whether it answers at all.
  Status Check(WeightVersion version, Duration timeout) override;

  // What the engine says its weights are: its checksums as one line of JSON, equal for equal
  // weights on the same engine. UNIMPLEMENTED: it has no /weights_checker.
  Result<std::string> Checksum(Duration timeout);
  // Its weight version. UNIMPLEMENTED: it does not say.
  Result<std::string> ReportedVersion(Duration timeout);

 private:
  Status Run(const char* step, const std::vector<EngineCall>& calls, Duration timeout,
             bool may_give_up);
  Status Name(const char* step, const Status& status) const;

  const std::unique_ptr<HttpClient> client_;
  const Options options_;
  const EngineSetup setup_;
};

struct HttpControlOptions {
  HttpClient::Options client;
  std::string kind;        // "sglang", "vllm"; "": to be found out
  std::string mode;        // as ParsePauseMode takes it
  std::string checkpoint;  // see HttpControl::Options
  Duration probe_timeout = limits::kEngineCallDeadline;
  Duration resume_timeout = limits::kEngineCallDeadline;
  Pulse* pulse = nullptr;
};

// Asks the engine what it can do, logs that, and says how it is controlled. Errors as of
// HttpClient::Create and ProbeEngine, INVALID_ARGUMENT for `kind` and an empty `checkpoint`:
// UNAVAILABLE and DEADLINE_EXCEEDED are worth coming back for, an engine may take minutes to start.
Result<std::unique_ptr<HttpControl>> MakeHttpControl(HttpControlOptions options,
                                                     const Clock& clock);

}  // namespace dws
