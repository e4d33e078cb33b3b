#include "common/service/sockets/greediest_peer.h"

#include <algorithm>
#include <map>
#include <utility>

namespace dws {

std::optional<size_t> GreediestPeer(std::span<const UnixPeer> oldest_first) {
  std::map<uid_t, size_t> of_user;
  std::map<std::pair<uid_t, pid_t>, size_t> of_process;
  for (const UnixPeer& peer : oldest_first) {
    ++of_user[peer.uid];
    ++of_process[{peer.uid, peer.pid}];
  }
  // A client can start any number of processes but not of users, so the user is compared first.
  const auto greed = [&](const UnixPeer& peer) {
    return std::pair(of_user.at(peer.uid), of_process.at({peer.uid, peer.pid}));
  };
  const auto found =
      std::max_element(oldest_first.begin(), oldest_first.end(),
                       [&](const UnixPeer& a, const UnixPeer& b) { return greed(a) < greed(b); });
  if (found == oldest_first.end()) return std::nullopt;
  return static_cast<size_t>(found - oldest_first.begin());
}

}  // namespace dws
