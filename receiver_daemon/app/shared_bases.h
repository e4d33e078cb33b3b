// The places that --shared-dir names, opened: directories, stores and HTTP servers, in the order in
// which they are asked.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/transport/s3/s3_file_system.h"
#include "receiver_daemon/options/receiver_options.h"

namespace dws {

struct SharedBase {
  std::string root;
  std::string name;             // as a source: "shared-dir", then "shared-dir-2" and so on
  FileSystem* files = nullptr;  // where it is; never null
  std::unique_ptr<FileSystem> owned = nullptr;  // these; null: they are the machine's
  const s3::S3FileSystem* store = nullptr;      // also these; null: they are in no store

  bool is_remote() const { return owned != nullptr; }
};

// `reads` and `writes` end requests, and outlive the bases, as `files` does, the machine's. Errors
// as OpenStore and HttpFileSystem::Create.
Result<std::vector<SharedBase>> OpenSharedBases(const ReceiverOptions& options, FileSystem& files,
                                                Cancellation& reads, Cancellation& writes);

}  // namespace dws
