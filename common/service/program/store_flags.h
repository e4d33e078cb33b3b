// The options of a shared directory that is a store, of senders and receivers.
#pragma once

#include "common/service/config/config.h"
#include "common/transport/s3/store.h"

namespace dws {

void AddStoreFlags(CLI::App& app, StoreOptions& store);
// `dir`: the --shared-dir; "": none. `insecure`: the --insecure.
void FinishStoreFlags(Config& config, const std::string& dir, const StoreOptions& store,
                      bool insecure);

}  // namespace dws
