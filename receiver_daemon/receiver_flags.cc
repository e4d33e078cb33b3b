#include "receiver_daemon/receiver_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "common/model/limits.h"
#include "common/service/program/daemon_flags.h"

namespace dws {
namespace {

// HOST:PORT of another machine: any name, a port that is not 0.
std::string CheckPeer(const std::string& text) {
  const size_t colon = text.rfind(':');
  unsigned port = 0;
  if (colon != std::string::npos && colon > 0 &&
      CLI::detail::lexical_cast(text.substr(colon + 1), port) && port > 0 && port < 65'536) {
    return "";
  }
  return fmt::format("expected HOST:PORT of a sender, found '{}'", text);
}

}  // namespace

void AddReceiverFlags(CLI::App& app, ReceiverOptions& options) {
  AddIdFlag(app, "--job-id", options.job_id, "The job; the senders' must be the same")->required();
  AddIdFlag(app, "--receiver-id", options.receiver_id,
            "Stable name of this receiver, unique in the job")
      ->required();
  app.add_option("--sender", options.senders, "A sender; once for each trainer rank")
      ->type_name("HOST:PORT")
      ->check(CLI::Validator(CheckPeer, "", "peer"))
      ->required();
  app.add_option("--socket", options.socket,
                 "Unix socket for engines; <socket>.handles is beside it")
      ->type_name("PATH")
      ->capture_default_str();
  AddListenFlag(app, "--listen", options.listen, "Where operators connect; port 0 picks one");
  AddListenFlag(app, "--http", options.http, "/healthz and /readyz; port 0 picks one");
  app.add_option("--state-dir", options.state_dir, "Folder of the ledger and of spooled transfers")
      ->type_name("PATH")
      ->capture_default_str();
  AddSizeFlag(app, "--staging-bytes", options.staging_bytes,
              "Memory for staged writes and for transfers, each; in bytes or as 256MiB",
              {.bytes_min = limits::kStagingBytesMin, .bytes_max = limits::kRegionBytesMax});
  app.add_option("--threads", options.threads, "Threads that stage and digest, besides the worker")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  AddProfileFlag(
      app, options.profile,
      "Deltas to ask for: the smallest (wan), the cheapest to apply (fast), by the speed "
      "of the link (auto)");
  app.add_option("--ports-file", options.ports_file, "Write the bound ports to this file as JSON")
      ->type_name("PATH");
  app.add_flag("--insecure", options.insecure,
               "Allow --listen and --http on addresses that others can reach, without TLS");
  AddSecurityFlags(app, options.tls, options.allow_users);
  app.add_option("--tls-server-name", options.tls_server_name,
                 "Name in the senders' certificates, where it is not the host that is dialled")
      ->type_name("NAME");
}

void FinishReceiverFlags(Config& config, const ReceiverOptions& options) {
  RejectExposure(config, "listen", options.listen, options.insecure || options.tls.given());
  RejectExposure(config, "http", options.http, options.insecure || options.tls.given());
  RejectTlsInPart(config, options.tls);
  if (options.senders.size() > limits::kSendersMax) {
    config.Reject("sender", fmt::format("given {} times, expected at most {}",
                                        options.senders.size(), limits::kSendersMax));
  }
}

}  // namespace dws
