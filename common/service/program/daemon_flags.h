// The options that both daemons have, and short ways to declare those that are alike.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log.h"
#include "common/model/delta_profile.h"
#include "common/service/config/config.h"
#include "common/service/security/tls_files.h"

namespace dws {

struct DaemonFlags {
  std::string config;
  bool check_config = false;
  std::string log_level = "info";
  std::string log_format = "auto";
  uint32_t stop_timeout_seconds = 20;
  uint32_t stall_timeout_seconds = 300;

  std::chrono::seconds stop_timeout() const { return std::chrono::seconds(stop_timeout_seconds); }
  std::chrono::seconds stall_timeout() const { return std::chrono::seconds(stall_timeout_seconds); }
  LogLevel level() const;
  LogFormat format() const;
};

// `flags` outlives the app.
void AddDaemonFlags(CLI::App& app, DaemonFlags& flags);

struct SizeRange {
  uint64_t bytes_min = 0;
  uint64_t bytes_max = 0;
};
// Takes bytes and "256MiB". The default is what `bytes` holds.
CLI::Option* AddSizeFlag(CLI::App& app, const std::string& name, uint64_t& bytes,
                         const std::string& help, SizeRange range);

// "auto", "fast" or "wan".
CLI::Option* AddProfileFlag(CLI::App& app, ProfileChoice& profile, const std::string& help);

// --quarantine-damaged-ledger.
CLI::Option* AddQuarantineFlag(CLI::App& app, bool& quarantine);

// Says, escaped, that an id has control characters, marks of direction, or bytes that are no UTF-8
// (common/base/printable.h); empty: it can be printed as it is.
std::string UnprintableIn(const std::string& id);

// An id of limits::kIdBytesMax bytes at most, not empty, that can be printed as it is.
CLI::Option* AddIdFlag(CLI::App& app, const std::string& name, std::string& id,
                       const std::string& help);

// HOST:PORT to listen on, as in ParseListenAddress; empty: no port is opened.
CLI::Option* AddListenFlag(CLI::App& app, const std::string& name, std::string& address,
                           const std::string& help);

// --tls-ca, --tls-cert, --tls-key and --allow-user.
void AddSecurityFlags(CLI::App& app, TlsFiles& tls, std::vector<std::string>& allow_users);
// Adds a mistake when some of the three TLS files are given and others not.
void RejectTlsInPart(Config& config, const TlsFiles& tls);

// Adds a mistake for each of --listen and --http that is reached without TLS by more than it may be
// (listen_address.h). `secured`: by TLS, or --insecure allows it.
void RejectExposure(Config& config, const std::string& listen, const std::string& http,
                    bool secured);

}  // namespace dws
