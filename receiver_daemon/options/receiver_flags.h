// The options of dws-receiver that dws-sender does not have.
#pragma once

#include "common/service/config/config.h"
#include "receiver_daemon/options/receiver_options.h"

namespace dws {

// Declares them, bound to `options`, which outlives the app.
void AddReceiverFlags(CLI::App& app, ReceiverOptions& options);

// Called after parsing: rejects mistakes that only several options together show.
void FinishReceiverFlags(Config& config, const ReceiverOptions& options);

}  // namespace dws
