// The options of dws-sender that dws-receiver does not have.
#pragma once

#include <string>
#include <vector>

#include "common/service/config/config.h"
#include "sender_daemon/app/sender_options.h"

namespace dws {

// Declares them, bound to `options`, which outlives the app.
void AddSenderFlags(CLI::App& app, SenderOptions& options);

// Call after parsing: sets defaults that depend on other options, and checks combinations.
void FinishSenderFlags(Config& config, SenderOptions& options);

// The other ranks' senders that are reached over TCP without TLS: "--train-peers HOST:PORT".
std::vector<std::string> PlainTrainPeers(const SenderOptions& options);

}  // namespace dws
