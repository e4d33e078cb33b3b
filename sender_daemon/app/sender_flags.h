// The options of dws-sender that dws-receiver does not have.
#pragma once

#include "common/service/config/config.h"
#include "sender_daemon/app/sender_app.h"

namespace dws {

// Declares them, bound to `options`, which outlives the app.
void AddSenderFlags(CLI::App& app, SenderOptions& options);

// Once they are read: defaults that depend on others, and what only several show to be mistaken.
void FinishSenderFlags(Config& config, SenderOptions& options);

}  // namespace dws
