// A checkpoint on disk, its tensors as spans of mapped memory: one safetensors file, or a folder of
// them with or without an index. Read for publishing, comparing and serving; opened as kWritable, a
// local checkpoint is patched in place.
//
// What a folder must be, so that no half of a checkpoint is taken for one:
// 1. With model.safetensors.index.json: the tensors of the files it names are exactly those of its
//    weight_map, each in the file it says. Other files of the folder are not looked at.
// 2. Without: all *.safetensors of the folder, no tensor twice. Files named model-00002-of-00007
// must be
//    all there, from 1 to 7: the index of a sharded checkpoint is written last, and a writer that
//    died before leaves some. (Folders numbered from 0 are slime's; they mean nothing without an
//    index.)
//
// Files truncated by others after opening are not guarded against, files rewritten are noticed by
// CheckUnchanged (mapped_file.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/formats/held_folder.h"
#include "common/formats/mapped_file.h"
#include "common/formats/safetensors/header.h"

namespace dws::safetensors {

struct CheckpointFile {
  std::string name;  // in the folder; the last part of the path of a single file
  Metadata metadata;
  MappedFile mapping;
};

struct CheckpointTensor {
  std::string name;
  FileDType dtype = FileDType::kU8;
  std::vector<uint64_t> shape;
  uint32_t file = 0;    // of Checkpoint::files()
  uint64_t offset = 0;  // of its bytes in that file
  ByteSpan bytes;
};

// Lifecycle: open until destroyed; all spans end with it, and survive a move of it. Threads: const
// methods from any; bytes as with MappedFile.
class Checkpoint {
 public:
  // `path`: a file or a folder. NOT_FOUND: nothing there, no safetensors in the folder, or a file
  // that the index names. DATA_LOSS: damaged, or not the folder described above.
  // RESOURCE_EXHAUSTED: more than limits.h allows. Others: as MappedFile.
  static Result<Checkpoint> Open(const std::string& path,
                                 FileAccess access = FileAccess::kReadOnly);
  // The same of a folder that somebody else may change meanwhile: whether that was so is for its
  // CheckUnchanged.
  static Result<Checkpoint> Open(HeldFolder& folder, FileAccess access);

  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  const std::string& path() const { return path_; }                    // what it was opened from
  const std::vector<CheckpointFile>& files() const { return files_; }  // by name
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }  // by name
  uint64_t tensor_bytes() const;                                             // of all together

  // nullptr when there is none.
  const CheckpointTensor* Find(std::string_view name) const;

  // Of a checkpoint opened as kWritable: the bytes of one of tensors(), as memory that is the file.
  MutableByteSpan Writable(const CheckpointTensor& tensor) const;
  // Writes what was changed to the disk. Errors as MappedFile::Sync; what then is on the disk is
  // unknown.
  Status Sync() const;
  // Of all files, as MappedFile::CheckUnchanged.
  Status CheckUnchanged() const;

 private:
  Checkpoint() = default;
  Status AddFile(MappedFile mapping, const std::string& name);
  Status SortTensors();

  std::string path_;
  std::vector<CheckpointFile> files_;
  std::vector<CheckpointTensor> tensors_;
};

// Whether its files may be changed in place: FAILED_PRECONDITION names one that is a link, symbolic
// or hard, and so may be another checkpoint's, as those in the cache of a hub are.
Status CheckNotLinked(const Checkpoint& checkpoint);

}  // namespace dws::safetensors
