// dws-sender: runs beside one trainer rank. Flags only; everything else is SenderApp.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <thread>

#include "common/base/log.h"
#include "common/service/build_version.h"
#include "common/service/sd_notify.h"
#include "common/service/shutdown_signal.h"
#include "sender_daemon/sender_app.h"

int main(int argc, char** argv) {
  dws::SenderOptions options;
  options.threads = std::max(1U, std::thread::hardware_concurrency());
  dws::LogLevel log_level = dws::LogLevel::kInfo;
  const std::map<std::string, dws::LogLevel> log_levels = {{"debug", dws::LogLevel::kDebug},
                                                           {"info", dws::LogLevel::kInfo},
                                                           {"warning", dws::LogLevel::kWarning},
                                                           {"error", dws::LogLevel::kError}};

  CLI::App app("dws-sender publishes the weights of one trainer rank as versioned deltas.");
  app.set_version_flag("--version", dws::VersionText("dws-sender"));
  app.add_option("--job-id", options.job_id, "Job that trainer, senders and receivers share")
      ->capture_default_str();
  app.add_option("--trainer-rank", options.trainer_rank, "Rank of the trainer beside this sender")
      ->capture_default_str();
  app.add_option(
      "--socket", options.socket,
      "Unix socket for the trainer (default /run/dws/sender-RANK.sock); descriptors go over "
      "SOCKET.handles");
  app.add_option("--listen", options.listen, "HOST:PORT for receivers; port 0 picks one")
      ->capture_default_str();
  app.add_option("--http", options.http, "HOST:PORT for /healthz and /readyz; port 0 picks one")
      ->capture_default_str();
  app.add_option("--state-dir", options.state_folder,
                 "Folder of the version ledger (default /var/lib/dws/sender-RANK)");
  app.add_option("--ports-file", options.ports_file, "Write the bound ports to this file as JSON");
  app.add_option("--retain-bytes", options.retain_bytes, "Cap on retained deltas, in bytes")
      ->capture_default_str();
  app.add_option("--retain-versions", options.retain_versions,
                 "Cap on retained deltas, in versions")
      ->check(CLI::Range(size_t{1}, dws::limits::kRetainedVersionsMax))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads that capture weights (default: all cores)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--insecure", options.insecure,
               "Allow --listen and --http on addresses that others can reach, without TLS");
  app.add_option("--tls-ca", options.tls.ca, "CAs of the job, PEM; with it, TCP is mutual TLS");
  app.add_option("--tls-cert", options.tls.cert, "Own certificate and those up to the CA, PEM");
  app.add_option("--tls-key", options.tls.key, "The certificate's private key, PEM");
  app.add_option("--allow-user", options.allow_users,
                 "Users, besides root and the daemon's own, that alone may use the unix sockets");
  app.add_option("--log-level", log_level, "debug, info, warning or error")
      ->transform(CLI::CheckedTransformer(log_levels, CLI::ignore_case));
  CLI11_PARSE(app, argc, argv);
  if (options.socket.empty())
    options.socket = fmt::format("/run/dws/sender-{}.sock", options.trainer_rank);
  if (options.state_folder.empty()) {
    options.state_folder = fmt::format("/var/lib/dws/sender-{}", options.trainer_rank);
  }

  dws::InitLog("dws-sender", log_level);
  auto signal = dws::ShutdownSignal::Install();
  if (!signal.ok()) {
    dws::LogError("cannot_start", {{"reason", dws::Message(signal.status())}});
    return 1;
  }
  auto sender = dws::SenderApp::Start(options);
  if (!sender.ok()) {
    dws::LogError("cannot_start", {{"reason", dws::Message(sender.status())}});
    return 1;
  }
  dws::NotifyReady();
  const int number = signal->Wait();
  dws::LogInfo("stopping", {{"signal", number}});
  dws::NotifyStopping();
  (*sender)->Stop();
  return 0;
}
