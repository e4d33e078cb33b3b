#include "common/service/sockets/greediest_peer.h"

#include <catch2/catch.hpp>
#include <vector>

namespace dws {
namespace {

constexpr UnixPeer kGood{.uid = 1, .pid = 10};

TEST_CASE("the oldest entry of the process with the most entries gives way", "[handles]") {
  const std::vector<UnixPeer> peers = {
      kGood, {.uid = 1, .pid = 11}, {.uid = 1, .pid = 12}, {.uid = 1, .pid = 12}};
  CHECK(GreediestPeer(peers) == 2);
}

TEST_CASE("the entries of all processes of a user count together", "[handles]") {
  // One process has two; the other user has three processes with one each.
  const std::vector<UnixPeer> peers = {
      kGood, kGood, {.uid = 2, .pid = 20}, {.uid = 2, .pid = 21}, {.uid = 2, .pid = 22}};
  CHECK(GreediestPeer(peers) == 2);
}

TEST_CASE("among equal peers the oldest gives way", "[handles]") {
  CHECK(GreediestPeer(std::vector<UnixPeer>{kGood, {.uid = 2, .pid = 20}}) == 0);
  CHECK_FALSE(GreediestPeer({}).has_value());
}

}  // namespace
}  // namespace dws
