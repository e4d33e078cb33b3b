#include "tools/checkpoint/parts/object_file.h"

#include <utility>

#include "common/formats/mapped_file.h"

namespace dws::checkpoint {
namespace {

std::string FramesPath(const std::string& path) { return path + ".frames.tmp"; }
std::string TemporaryPath(const std::string& path) { return path + ".tmp"; }

}  // namespace

Result<std::unique_ptr<ObjectFile>> ObjectFile::Create(FileSystem& files, const std::string& path) {
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> frames, files.Create(FramesPath(path)));
  return std::unique_ptr<ObjectFile>(new ObjectFile(files, path, std::move(frames)));
}

ObjectFile::ObjectFile(FileSystem& files, std::string path, std::unique_ptr<AppendFile> frames)
    : files_(files),
      path_(std::move(path)),
      frames_(std::move(frames)),
      writer_([this](ByteSpan frame) { return frames_->Append(frame); }) {}

ObjectFile::~ObjectFile() {
  frames_.reset();
  // A missing file is no error: it was renamed, or never made.
  static_cast<void>(files_.Remove(FramesPath(path_)));
  static_cast<void>(files_.Remove(TemporaryPath(path_)));
}

std::vector<std::string> ObjectFile::PathsOf(const std::string& path) {
  return {path, FramesPath(path), TemporaryPath(path)};
}

Status ObjectFile::CopyFrames(AppendFile& to) {
  DWS_ASSIGN_OR_RETURN(const MappedFile frames,
                       MappedFile::Open(FramesPath(path_), FileAccess::kReadOnly));
  return to.Append(frames.bytes());
}

Result<uint64_t> ObjectFile::Finish(DeltaManifest identity) {
  const std::vector<std::byte> head = writer_.Finish(std::move(identity));
  {
    DWS_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file,
                         files_.Create(TemporaryPath(path_)));
    DWS_RETURN_IF_ERROR(file->Append(head));
    DWS_RETURN_IF_ERROR(CopyFrames(*file));
    DWS_RETURN_IF_ERROR(file->Sync());
  }
  DWS_RETURN_IF_ERROR(files_.Rename(TemporaryPath(path_), path_));
  return head.size() + writer_.frames_bytes();
}

}  // namespace dws::checkpoint
