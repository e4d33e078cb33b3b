// dws-receiver: flags and signals.
#include <CLI/CLI.hpp>

#include <map>
#include <string>

#include "common/base/log.h"
#include "common/model/limits.h"
#include "common/service/build_version.h"
#include "common/service/sd_notify.h"
#include "common/service/shutdown_signal.h"
#include "receiver_daemon/receiver_app.h"

namespace dws {
namespace {

int Run(const ReceiverOptions& options) {
  Result<ShutdownSignal> signal = ShutdownSignal::Install();
  if (!signal.ok()) {
    LogError("start_failed", {{"reason", Message(signal.status())}});
    return 1;
  }
  Result<std::unique_ptr<ReceiverApp>> app = ReceiverApp::Start(options);
  if (!app.ok()) {
    LogError("start_failed", {{"reason", Message(app.status())}});
    return 1;
  }
  NotifyReady();
  const int number = signal->Wait();
  LogInfo("stopping", {{"signal", number}});
  NotifyStopping();
  (*app)->Stop();
  return 0;
}

}  // namespace
}  // namespace dws

int main(int argc, char** argv) {
  dws::ReceiverOptions options;
  dws::LogLevel level = dws::LogLevel::kInfo;
  CLI::App app("dws-receiver: keeps the weights of a rollout engine equal to the trainer's");
  app.set_version_flag("--version", dws::VersionText("dws-receiver"));
  app.add_option("--job-id", options.job_id, "The job; the senders' must be the same")->required();
  app.add_option("--receiver-id", options.receiver_id,
                 "Stable name of this receiver, unique in the job")
      ->required();
  app.add_option("--sender", options.senders, "host:port of a sender; once for each trainer rank")
      ->required();
  app.add_option("--socket", options.socket,
                 "Unix socket for engines; <socket>.handles is beside it")
      ->capture_default_str();
  app.add_option("--listen", options.listen, "Address for operators (status, health, reflection)")
      ->capture_default_str();
  app.add_option("--http", options.http, "Address of /healthz and /readyz")->capture_default_str();
  app.add_option("--state-dir", options.state_dir, "Folder of the ledger and of spooled transfers")
      ->capture_default_str();
  app.add_option("--staging-bytes", options.staging_bytes,
                 "Memory for staged writes and for transfers, each")
      ->check(CLI::Range(uint64_t{1} << 20, dws::limits::kRegionBytesMax))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads that stage and digest, besides the worker")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--ports-file", options.ports_file, "Where to write the bound ports, as JSON");
  app.add_flag("--insecure", options.insecure,
               "Allow addresses that others can reach, without TLS");
  app.add_option("--tls-ca", options.tls.ca, "CAs of the job, PEM; with it, TCP is mutual TLS");
  app.add_option("--tls-cert", options.tls.cert, "Own certificate and those up to the CA, PEM");
  app.add_option("--tls-key", options.tls.key, "The certificate's private key, PEM");
  app.add_option("--tls-server-name", options.tls_server_name,
                 "Name in the senders' certificates, where it is not the host that is dialled");
  app.add_option("--allow-user", options.allow_users,
                 "Users, besides root and the daemon's own, that alone may use the unix sockets");
  app.add_option("--log-level", level, "debug, info, warning or error")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, dws::LogLevel>{{"debug", dws::LogLevel::kDebug},
                                               {"info", dws::LogLevel::kInfo},
                                               {"warning", dws::LogLevel::kWarning},
                                               {"error", dws::LogLevel::kError}}));
  CLI11_PARSE(app, argc, argv);
  dws::InitLog("dws-receiver", level);
  return dws::Run(options);
}
