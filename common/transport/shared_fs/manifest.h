// The contents of a version in a shared directory, as its sender states them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "common/transport/shared_fs/names.h"
#include "common/transport/shared_fs/sealed_file.h"
#include "common/transport/shared_fs/sha256.h"

namespace dws::shared {

// A file of a version with the SHA-256 of each of its pieces.
struct FileEntry {
  std::string name;
  uint64_t size_bytes = 0;
  uint32_t piece_bytes = 1;
  std::vector<Sha256Digest> pieces;

  friend bool operator==(const FileEntry&, const FileEntry&) = default;
};

// A version of one trainer rank in a shared directory.
struct Manifest {
  std::string job_id;
  StreamId stream;
  TrainerRank trainer_rank;
  VersionName name;
  std::optional<WeightVersion> base;  // of its delta; absent: it has none
  Digest state_token;
  FileEntry welcome;
  std::vector<FileEntry> files;

  const FileEntry* Find(std::string_view file) const;  // null: there is no such file
  bool has_delta() const { return base.has_value(); }
  bool is_anchor() const { return Find(kFullName) != nullptr; }
  // Has neither of them: only digests, for receivers whose memory has the weights already.
  bool is_base() const { return !has_delta() && !is_anchor(); }
  uint64_t size_bytes() const;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

using ManifestPtr = std::shared_ptr<const Manifest>;

std::vector<std::byte> SerializeManifest(const Manifest& manifest, const Key& key);

// Parses `file`, which was read from `path`. Errors as Unseal; DATA_LOSS also if its contents
// contradict each other.
Result<Manifest> ParseManifest(ByteSpan file, const Key& key, const std::string& path);

}  // namespace dws::shared
