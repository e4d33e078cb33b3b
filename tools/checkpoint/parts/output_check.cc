#include "tools/checkpoint/parts/output_check.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "common/base/file_system.h"
#include "common/delta/objects/object_header.h"
#include "tools/checkpoint/parts/object_file.h"

namespace dws::checkpoint {

std::vector<std::string> PathsOf(const Checkpoint& checkpoint) {
  std::vector<std::string> paths = {checkpoint.path()};
  for (const safetensors::CheckpointFile& file : checkpoint.files()) {
    paths.push_back(file.mapping.path());
  }
  return paths;
}

Status CheckNotRead(std::span<const std::string> written, std::span<const std::string> read) {
  for (const std::string& path : written) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    for (const std::string& source : read) {
      // Compare files and not names: a link or another spelling may lead to the same file.
      if (!std::filesystem::equivalent(path, source, ignored)) continue;
      return InvalidArgumentError(
          "{} is read by this command, and would be overwritten as {}: name another output", source,
          path);
    }
  }
  return OkStatus();
}

Status CheckObjectOutput(const std::string& out, std::span<const std::string> read) {
  DWS_RETURN_IF_ERROR(CheckNotRead(ObjectFile::PathsOf(out), read));
  std::error_code ignored;
  if (!std::filesystem::exists(out, ignored)) return OkStatus();
  if (std::filesystem::is_regular_file(out, ignored)) {
    PosixFileSystem files;
    DWS_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.OpenForRead(out));
    const ByteSpan magic = ObjectMagic();
    std::vector<std::byte> start(magic.size());
    DWS_ASSIGN_OR_RETURN(const size_t count, file->ReadAt(0, start));
    if (count == 0 || std::equal(start.begin(), start.end(), magic.begin())) return OkStatus();
  }
  return AlreadyExistsError("{} exists and is not a delta object: name another, or remove it", out);
}

}  // namespace dws::checkpoint
