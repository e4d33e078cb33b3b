// A checkpoint on disk, with its tensors as spans of mapped memory: one safetensors file, or a
// folder of them with or without an index. It is read for publishing, comparing and serving; opened
// as kWritable, a local checkpoint is patched in place.
//
// Rules for a folder, so that a partial checkpoint is never accepted:
// 1. consolidated* files, which have the same weights by other names, count only if the folder has
//    no other *.safetensors.
// 2. With an index: the tensors of the files it names are exactly those of its weight_map, each in
//    the file it names. Other files of the folder are ignored. The index is
//    model.safetensors.index.json, or, if neither that file nor model.safetensors exists, the only
//    other *.safetensors.index.json.
// 3. Without an index: all *.safetensors of the folder count, and no tensor may occur twice. If
//    files are named like model-00002-of-00007, all of them must exist, from 1 to 7: the index of a
//    sharded checkpoint is written last, and a writer that died earlier leaves only some files.
//    (Folders numbered from 0 are slime's; they are not valid without an index.)
// clients/python/dws/plugins/checkpoint_files.py has the same rules.
//
// Nothing guards against files that others truncate after opening. CheckUnchanged notices files
// that others rewrite (mapped_file.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/held_folder.h"
#include "common/formats/mapped_file.h"
#include "common/formats/safetensors/claim_limits.h"
#include "common/formats/safetensors/header.h"

namespace dws::safetensors {

// One file of a checkpoint.
struct CheckpointFile {
  std::string name;  // in the folder; the last part of the path of a single file
  Metadata metadata;
  MappedFile mapping;
};

// One tensor of a checkpoint. `bytes` is valid as long as the Checkpoint; empty for one that is
// open as kUnmapped.
struct CheckpointTensor {
  std::string name;
  FileDType dtype = FileDType::kU8;
  std::vector<uint64_t> shape;
  uint32_t file = 0;    // of Checkpoint::files()
  uint64_t offset = 0;  // of its bytes in that file
  uint64_t size_bytes = 0;
  ByteSpan bytes;
};

// An open checkpoint. Lifecycle: open until destroyed; all spans become invalid then, but stay
// valid when it is moved. Threads: const methods from any; bytes as with MappedFile.
class Checkpoint {
 public:
  // `path`: a file or a folder. NOT_FOUND: nothing is there, the folder has no safetensors files,
  // or a file that the index names is missing. DATA_LOSS: damaged, or the folder breaks the rules
  // above. RESOURCE_EXHAUSTED: more than limits.h allows. Other errors as MappedFile.
  static Result<Checkpoint> Open(const std::string& path,
                                 FileAccess access = FileAccess::kReadOnly);
  // Like Open(path), for a folder that others may change meanwhile. The caller calls the folder's
  // CheckUnchanged to notice that. The headers are checked against `claims` before anything else is
  // read.
  static Result<Checkpoint> Open(HeldFolder& folder, FileAccess access,
                                 const ClaimLimits& claims = {});

  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  const std::string& path() const { return path_; }                          // as given to Open
  const std::vector<CheckpointFile>& files() const { return files_; }        // by name
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }  // by name
  uint64_t tensor_bytes() const;                                             // sum of all tensors

  // nullptr when there is none.
  const CheckpointTensor* Find(std::string_view name) const;

  // MappedFile::ReadAt, Release and StartWriteback of bytes of one of tensors(), from `offset` on.
  Status Read(const CheckpointTensor& tensor, uint64_t offset, MutableByteSpan to) const;
  void Release(const CheckpointTensor& tensor, uint64_t offset, uint64_t size_bytes) const;
  void StartWriteback(const CheckpointTensor& tensor, uint64_t offset, uint64_t size_bytes) const;
  // Only for a checkpoint opened as kWritable: the bytes of one of tensors(), mapped from the file.
  MutableByteSpan Writable(const CheckpointTensor& tensor) const;
  // MappedFile::CheckIntact of all files.
  Status CheckIntact() const;
  // Writes all changes to the disk. Errors as MappedFile::Sync; after an error the contents of the
  // disk are unknown.
  Status Sync() const;
  // MappedFile::CheckUnchanged of all files.
  Status CheckUnchanged() const;

 private:
  Checkpoint() = default;
  Status AddFile(MappedFile mapping, const std::string& name, const ClaimLimits& claims);
  Status SortTensors();

  std::string path_;
  std::vector<CheckpointFile> files_;
  std::vector<CheckpointTensor> tensors_;
};

}  // namespace dws::safetensors
