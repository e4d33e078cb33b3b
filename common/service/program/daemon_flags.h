// The options that both daemons have, and helpers to declare similar options.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log/log.h"
#include "common/model/delta_profile.h"
#include "common/service/config/config.h"
#include "common/service/security/tls_files.h"

namespace dws {

// The values of the options that every daemon has.
struct DaemonFlags {
  std::string config;
  bool check_config = false;
  std::string log_level = "info";
  std::string log_format = "auto";
  uint32_t stop_timeout_seconds = 20;
  uint32_t stall_timeout_seconds = 300;
  int32_t owner_pid = 0;  // 0: none

  std::chrono::seconds stop_timeout() const { return std::chrono::seconds(stop_timeout_seconds); }
  std::chrono::seconds stall_timeout() const { return std::chrono::seconds(stall_timeout_seconds); }
  LogLevel level() const;
  LogFormat format() const;
};

// How far an option has been proved, as docs/features.md explains it. --help groups options by it.
enum class Tier : uint8_t { kSupported, kExperimental };

// While it exists, options that are added to the app belong to a tier; else they are core options.
class TierOfFlags {
 public:
  TierOfFlags(CLI::App& app, Tier tier);
  ~TierOfFlags();
  TierOfFlags(const TierOfFlags&) = delete;
  TierOfFlags& operator=(const TierOfFlags&) = delete;

 private:
  CLI::App& app_;
};

// `flags` outlives the app.
void AddDaemonFlags(CLI::App& app, DaemonFlags& flags);

struct SizeRange {
  uint64_t bytes_min = 0;
  uint64_t bytes_max = 0;
};
// Accepts a number of bytes or a size such as "256MiB". The default is the value of `bytes`.
CLI::Option* AddSizeFlag(CLI::App& app, const std::string& name, uint64_t& bytes,
                         const std::string& help, SizeRange range);

// "auto", "fast", "wan" or "direct".
CLI::Option* AddProfileFlag(CLI::App& app, ProfileChoice& profile, const std::string& help);

// --quarantine-damaged-ledger.
CLI::Option* AddQuarantineFlag(CLI::App& app, bool& quarantine);

// An id of at most limits::kIdBytesMax bytes, not empty, that can be printed unchanged.
CLI::Option* AddIdFlag(CLI::App& app, const std::string& name, std::string& id,
                       const std::string& help);

// HOST:PORT to listen on, as in ParseListenAddress; empty: no port is opened.
CLI::Option* AddListenFlag(CLI::App& app, const std::string& name, std::string& address,
                           const std::string& help);

// --tls-ca, --tls-cert, --tls-key and --allow-user.
void AddSecurityFlags(CLI::App& app, TlsFiles& tls, std::vector<std::string>& allow_users);
// Adds a mistake when some but not all of the three TLS files are given.
void RejectTlsInPart(Config& config, const TlsFiles& tls);

// Adds a mistake for each of --listen and --http that would be too exposed without TLS
// (listen_address.h). `secured`: TLS is on, or --insecure is given.
void RejectExposure(Config& config, const std::string& listen, const std::string& http,
                    bool secured);

}  // namespace dws
