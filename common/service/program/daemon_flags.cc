#include "common/service/program/daemon_flags.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <vector>

#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/service/listen_address.h"

namespace dws {
namespace {

// One day: long enough in practice, and small enough that no computation with it overflows.
constexpr uint32_t kTimeoutSecondsMax = 86'400;

}  // namespace

LogLevel DaemonFlags::level() const {
  if (log_level == "debug") return LogLevel::kDebug;
  if (log_level == "warning") return LogLevel::kWarning;
  return log_level == "error" ? LogLevel::kError : LogLevel::kInfo;
}

LogFormat DaemonFlags::format() const {
  if (log_format == "text") return LogFormat::kText;
  if (log_format == "journal") return LogFormat::kJournal;
  return log_format == "json" ? LogFormat::kJson : LogFormat::kAuto;
}

TierOfFlags::TierOfFlags(CLI::App& app, Tier tier) : app_(app) {
  app_.option_defaults()->group(tier == Tier::kSupported
                                    ? "Supported options"
                                    : "Experimental options, not yet run on their hardware");
}

TierOfFlags::~TierOfFlags() { app_.option_defaults()->group("Options"); }

void AddDaemonFlags(CLI::App& app, DaemonFlags& flags) {
  app.add_option("--config", flags.config, "TOML file with any of these options as keys")
      ->type_name("FILE")
      ->configurable(false);
  app.add_flag("--check-config", flags.check_config,
               "Print the effective configuration and every mistake, start nothing and open "
               "nothing that it names; exit status 2 on a mistake")
      ->configurable(false);
  app.add_option("--owner-pid", flags.owner_pid,
                 "Stop when this process, which must be the one that starts the daemon, has ended")
      ->type_name("PID")
      ->check(CLI::Range(int32_t{1}, std::numeric_limits<int32_t>::max()))
      ->configurable(false);
  app.add_option("--log-level", flags.log_level,
                 "Lowest level that is logged; SIGHUP reads it again")
      ->check(CLI::IsMember(std::vector<std::string>{"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_option("--log-format", flags.log_format,
                 "Format: auto is journal where stderr is the journal, else text")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "text", "journal", "json"}))
      ->capture_default_str();
  app.add_option("--stop-timeout", flags.stop_timeout_seconds,
                 "How long work under way may take after SIGTERM")
      ->type_name("SECONDS")
      ->check(CLI::Range(uint32_t{0}, kTimeoutSecondsMax))
      ->capture_default_str();
  app.add_option("--stall-timeout", flags.stall_timeout_seconds,
                 "Time without progress after which systemd's watchdog is no longer fed")
      ->type_name("SECONDS")
      ->check(CLI::Range(uint32_t{1}, kTimeoutSecondsMax))
      ->capture_default_str();
}

CLI::Option* AddSizeFlag(CLI::App& app, const std::string& name, uint64_t& bytes,
                         const std::string& help, SizeRange range) {
  return app.add_option(name, bytes, help)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true).description(""))
      ->check(CLI::Range(range.bytes_min, range.bytes_max).description(""))
      ->type_name("SIZE")
      ->capture_default_str();
}

CLI::Option* AddProfileFlag(CLI::App& app, ProfileChoice& profile, const std::string& help) {
  const auto take = [&profile](const std::string& text) {
    profile = *ProfileChoiceNamed(text);  // valid: the check below has passed
  };
  return app.add_option_function<std::string>("--profile", take, help)
      ->check(CLI::IsMember({"auto", "fast", "wan", "direct"}).description(""))
      ->type_name("auto|fast|wan|direct")
      ->default_str(std::string(ToString(profile)));
}

CLI::Option* AddQuarantineFlag(CLI::App& app, bool& quarantine) {
  return app.add_flag(
      "--quarantine-damaged-ledger", quarantine,
      "Set a damaged ledger aside and begin an empty one that keeps the stream's fence, instead of "
      "refusing to start");
}

CLI::Option* AddIdFlag(CLI::App& app, const std::string& name, std::string& id,
                       const std::string& help) {
  const auto check = [](const std::string& text) {
    if (!text.empty() && text.size() <= limits::kIdBytesMax) return UnprintableIn(text);
    return fmt::format("has {} bytes, expected 1 to {}", text.size(), limits::kIdBytesMax);
  };
  return app.add_option(name, id, help)
      ->check(CLI::Validator(check, "", "id"))
      ->type_name("ID")
      ->capture_default_str();
}

CLI::Option* AddListenFlag(CLI::App& app, const std::string& name, std::string& address,
                           const std::string& help) {
  const auto check = [](const std::string& text) {
    return text.empty() ? std::string() : std::string(Message(ParseListenAddress(text).status()));
  };
  return app.add_option(name, address, help)
      ->check(CLI::Validator(check, "", "address"))
      ->type_name("HOST:PORT")
      ->capture_default_str();
}

void AddSecurityFlags(CLI::App& app, TlsFiles& tls, std::vector<std::string>& allow_users) {
  app.add_option("--tls-ca", tls.ca, "CAs of the job, PEM; with it, TCP is mutual TLS")
      ->type_name("FILE");
  app.add_option("--tls-cert", tls.cert, "Own certificate and those up to the CA, PEM")
      ->type_name("FILE");
  app.add_option("--tls-key", tls.key, "The certificate's private key, PEM")->type_name("FILE");
  app.add_option("--allow-user", allow_users,
                 "The only users, besides root and the daemon's own, that may use the unix sockets")
      ->type_name("USER");
}

void RejectTlsInPart(Config& config, const TlsFiles& tls) {
  const Status status = CheckTlsFiles(tls);
  if (status.ok()) return;
  const std::string_view given = !tls.ca.empty()     ? "tls-ca"
                                 : !tls.cert.empty() ? "tls-cert"
                                                     : "tls-key";
  config.Reject(given, Message(status));
}

void RejectExposure(Config& config, const std::string& listen, const std::string& http,
                    bool secured) {
  const auto reject = [&config](std::string_view name, const Status& status) {
    if (!status.ok()) config.Reject(name, Message(status));
  };
  // An address that cannot be parsed is either empty or already rejected by its own check.
  if (const Result<ListenAddress> address = ParseListenAddress(listen); address.ok()) {
    reject("listen", CheckPlainListener(*address, secured));
  }
  if (const Result<ListenAddress> address = ParseListenAddress(http); address.ok()) {
    reject("http", CheckExposure(*address, "--http", secured));
  }
}

}  // namespace dws
