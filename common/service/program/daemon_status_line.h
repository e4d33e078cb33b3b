// The state of a daemon in one line, for `systemctl status`.
#pragma once

#include <string>

namespace dws {

namespace v1 {
class StatusReply;
}  // namespace v1

// "version 7, lag 0, engine ranks 2 of 2", "version 7, receivers 3, slowest at 5", or
// "not ready: " and the reason.
std::string StatusLine(const v1::StatusReply& status);

}  // namespace dws
