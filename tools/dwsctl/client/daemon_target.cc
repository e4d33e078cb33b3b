#include "tools/dwsctl/client/daemon_target.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace dws::dwsctl {
namespace {

namespace fs = std::filesystem;

constexpr char kPermissionHint[] = "be root, the daemon's user, or in its group";

// gRPC parses a target as a URI, so escape characters that have a meaning there or are not ASCII.
std::string UriPath(const std::string& path) {
  std::string uri;
  for (const char c : path) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       std::string_view("/-._~").find(c) != std::string_view::npos;
    uri += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return uri;
}

DaemonTarget SocketTarget(const std::string& path) {
  return {.grpc_target = "unix:" + UriPath(path), .text = path, .local = true};
}

Status Denied(const std::string& path, std::string_view what) {
  return MakeStatus(absl::StatusCode::kPermissionDenied,
                    fmt::format("{}: {}; {}", path, what, kPermissionHint));
}

Result<DaemonTarget> CheckedSocket(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error == std::errc::permission_denied) return Denied(path, "you may not access its folder");
  if (!fs::exists(status)) {
    return NotFoundError(
        "{}: no such socket; is the daemon running, and was it given this --socket?", path);
  }
  if (!fs::is_socket(status)) return InvalidArgumentError("{} is not a socket", path);
  if (access(path.c_str(), W_OK) != 0)
    return Denied(path, "you have no permission to connect to it");
  return SocketTarget(path);
}

Result<DaemonTarget> CheckedAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string_view port =
      colon == std::string::npos ? std::string_view() : std::string_view(address).substr(colon + 1);
  const bool digits = !port.empty() && std::all_of(port.begin(), port.end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || colon == 0) {
    return InvalidArgumentError("--address '{}' is not host:port, like 127.0.0.1:7700", address);
  }
  // Without "dns:///" gRPC could parse "host:port" as a URI with the scheme "host".
  return DaemonTarget{.grpc_target = "dns:///" + address, .text = address};
}

// The gRPC sockets of daemons, such as "sender-0.sock". Beside each is a "sender-0.sock.handles",
// which is left out.
Result<std::vector<std::string>> SocketsIn(const std::string& folder) {
  std::vector<std::string> sockets;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::permission_denied)
    return Denied(folder, "you have no permission to look into it");
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().extension() == ".sock" && entry->is_socket(ignored)) {
      sockets.push_back(entry->path().string());
    }
  }
  std::sort(sockets.begin(), sockets.end());
  if (sockets.empty()) {
    return NotFoundError(
        "no daemon has a socket in {}; start dws-sender or dws-receiver, or name one with --socket "
        "or --address",
        folder);
  }
  return sockets;
}

// The daemon that the environment names; nullopt: none, or the flags name another run directory.
Result<std::optional<DaemonTarget>> EnvironmentTarget(const std::string& run_dir) {
  if (run_dir != kRunDirDefault) return std::optional<DaemonTarget>();
  const auto value = [](const char* name) {
    const char* const found = std::getenv(name);
    return std::string(found == nullptr ? "" : found);
  };
  const std::string address = value(kAddressVariable);
  const std::string socket = value(kSocketVariable);
  if (address.empty() && socket.empty()) return std::optional<DaemonTarget>();
  if (!address.empty() && !socket.empty()) {
    return InvalidArgumentError(
        "{} and {} are both set: unset one, or name a daemon with --address or --socket",
        kAddressVariable, kSocketVariable);
  }
  Result<DaemonTarget> target = address.empty() ? CheckedSocket(socket) : CheckedAddress(address);
  if (target.ok()) return std::optional<DaemonTarget>(*std::move(target));
  return Annotate(target.status(), address.empty() ? kSocketVariable : kAddressVariable);
}

}  // namespace

Result<DaemonTarget> FindDaemon(const TargetFlags& flags) {
  if (!flags.address.empty() && !flags.socket.empty()) {
    return InvalidArgumentError("--address and --socket exclude each other");
  }
  if (!flags.address.empty()) return CheckedAddress(flags.address);
  if (!flags.socket.empty()) return CheckedSocket(flags.socket);
  DWS_ASSIGN_OR_RETURN(const std::optional<DaemonTarget> named, EnvironmentTarget(flags.run_dir));
  if (named.has_value()) return *named;
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> sockets, SocketsIn(flags.run_dir));
  if (sockets.size() > 1) {
    return InvalidArgumentError("{} daemons have sockets in {}: choose one with --socket: {}",
                                sockets.size(), flags.run_dir, fmt::join(sockets, ", "));
  }
  return CheckedSocket(sockets.front());
}

Result<std::vector<DaemonTarget>> FindDaemons(const std::vector<std::string>& addresses,
                                              const std::vector<std::string>& sockets,
                                              const std::string& run_dir) {
  std::vector<DaemonTarget> targets;
  for (const std::string& address : addresses) {
    DWS_ASSIGN_OR_RETURN(DaemonTarget target, CheckedAddress(address));
    targets.push_back(std::move(target));
  }
  // A socket that does not exist now is kept: `watch` waits for it.
  for (const std::string& socket : sockets) targets.push_back(SocketTarget(socket));
  if (!targets.empty()) return targets;
  DWS_ASSIGN_OR_RETURN(const std::optional<DaemonTarget> named, EnvironmentTarget(run_dir));
  if (named.has_value()) return std::vector<DaemonTarget>{*named};
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> found, SocketsIn(run_dir));
  for (const std::string& socket : found) targets.push_back(SocketTarget(socket));
  return targets;
}

}  // namespace dws::dwsctl
