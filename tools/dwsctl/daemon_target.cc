#include "tools/dwsctl/daemon_target.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace dws::dwsctl {
namespace {

namespace fs = std::filesystem;

DaemonTarget SocketTarget(const std::string& path) {
  return {.grpc_target = "unix:" + path, .text = path};
}

Result<DaemonTarget> CheckedSocket(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return NotFoundError(
        "{}: no such socket; is the daemon running, and was it given this --socket?", path);
  }
  if (!fs::is_socket(status)) return InvalidArgumentError("{} is not a socket", path);
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
  return DaemonTarget{.grpc_target = address, .text = address};
}

// The gRPC sockets of daemons: "sender-0.sock"; beside each lies a "sender-0.sock.handles".
std::vector<std::string> SocketsIn(const std::string& folder) {
  std::vector<std::string> sockets;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; entry != end; entry.increment(error)) {
    if (error) break;
    if (entry->path().extension() == ".sock" && entry->is_socket(error)) {
      sockets.push_back(entry->path().string());
    }
  }
  std::sort(sockets.begin(), sockets.end());
  return sockets;
}

}  // namespace

Result<DaemonTarget> FindDaemon(const TargetFlags& flags) {
  if (!flags.address.empty() && !flags.socket.empty()) {
    return InvalidArgumentError("--address and --socket exclude each other");
  }
  if (!flags.address.empty()) return CheckedAddress(flags.address);
  if (!flags.socket.empty()) return CheckedSocket(flags.socket);

  const std::vector<std::string> sockets = SocketsIn(flags.run_dir);
  if (sockets.empty()) {
    return NotFoundError(
        "no daemon has a socket in {}; start dws-sender or dws-receiver, or name one with --socket "
        "or "
        "--address",
        flags.run_dir);
  }
  if (sockets.size() > 1) {
    return InvalidArgumentError("{} daemons have sockets in {}: choose one with --socket: {}",
                                sockets.size(), flags.run_dir, fmt::join(sockets, ", "));
  }
  return SocketTarget(sockets.front());
}

}  // namespace dws::dwsctl
