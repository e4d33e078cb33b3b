// The options of a shared directory that is a store or an HTTP server, of senders and receivers,
// and the store's status.
#pragma once

#include <string>
#include <vector>

#include "common/service/config/config.h"
#include "common/transport/s3/store.h"
#include "proto/store_status.pb.h"

namespace dws {

void AddStoreFlags(CLI::App& app, StoreOptions& store);
// `dirs`: the places of --shared-dir. `insecure`: the --insecure.
void FinishStoreFlags(Config& config, const std::vector<std::string>& dirs,
                      const StoreOptions& store, bool insecure);

// What the store was asked for, for a daemon's status.
void FillStoreStatus(const s3::S3FileSystem& store, TimePoint now, v1::StoreStatus& status);

}  // namespace dws
