// The options of a shared directory that is a store or an HTTP server, of senders and receivers.
#pragma once

#include <string>
#include <vector>

#include "common/service/config/config.h"
#include "common/transport/s3/store.h"

namespace dws {

void AddStoreFlags(CLI::App& app, StoreOptions& store);
// `dirs`: the places of --shared-dir. `insecure`: the --insecure.
void FinishStoreFlags(Config& config, const std::vector<std::string>& dirs,
                      const StoreOptions& store, bool insecure);

}  // namespace dws
