// The names are those of the flag, the status and the metrics.
#include "receiver_daemon/transfer/full_way.h"

namespace dws {

std::string_view ToString(FullWay way) {
  switch (way) {
    case FullWay::kSameHost:
      return "same-host";
    case FullWay::kFabric:
      return "fabric";
    case FullWay::kGrpc:
      return "grpc";
  }
  return "";
}

bool ParseFullWay(std::string_view name, FullWayChoice& choice) {
  if (name == "auto") {
    choice = std::nullopt;
    return true;
  }
  for (const FullWay way : kFullWays) {
    if (name != ToString(way)) continue;
    choice = way;
    return true;
  }
  return false;
}

}  // namespace dws
