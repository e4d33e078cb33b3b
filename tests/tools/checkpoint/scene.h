// The fixture of most tests here: two checkpoints and the delta between them.
#pragma once

#include <string>

#include "common/base/file_system.h"
#include "common/base/threads/thread_pool.h"
#include "tests/fakes/temp_folder.h"
#include "tests/tools/checkpoint/checkpoints.h"
#include "tools/checkpoint/pack.h"

namespace dws::checkpoint {

inline constexpr uint64_t kSmallShard = 200'000;  // several files

inline Status NoProgress(const ProgressStep&) { return OkStatus(); }

// Folders A and B with versions 1 and 2. CHECKs that each step succeeds.
struct Scene {
  explicit Scene(uint64_t seed = 1, uint64_t one_of = 50) {
    a = RandomModel(seed);
    b = a;
    Train(b, one_of, seed + 1000);
    WriteFolder(a, A(), kSmallShard);
    WriteFolder(b, B(), kSmallShard);
  }

  std::string A() const { return folder.File("A"); }
  std::string B() const { return folder.File("B"); }

  Result<PackedObject> PackTo(const std::string& from, const std::string& to,
                              const std::string& out, const PackOptions& options = {}) {
    DWS_ASSIGN_OR_RETURN(const Checkpoint before, Checkpoint::Open(from));
    DWS_ASSIGN_OR_RETURN(const Checkpoint after, Checkpoint::Open(to));
    return Pack(files, before, after, options, out, pool, NoProgress);
  }

  // The delta from A to B.
  std::string Delta(DeltaProfile profile = DeltaProfile::kFast) {
    const std::string path = folder.File("delta.dws");
    DWS_CHECK(PackTo(A(), B(), path, {.profile = profile}).ok());
    return path;
  }

  TempFolder folder;
  PosixFileSystem files;
  ThreadPool pool{2};
  TestModel a;
  TestModel b;
};

}  // namespace dws::checkpoint
