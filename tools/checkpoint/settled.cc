#include "tools/checkpoint/settled.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace dws::checkpoint {
namespace {

constexpr std::string_view kRedoEnd = ".dws-apply.redo";

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// The folder that a file lies in, whatever links lead to it.
std::string FolderOf(const std::string& file) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(file, failed);
  return (failed ? std::filesystem::absolute(file, failed) : real).parent_path();
}

// Of the folder, and of single files in it.
std::vector<std::string> RedosIn(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code ended;
  for (std::filesystem::directory_iterator entry(folder, ended), end; !ended && entry != end;
       entry.increment(ended)) {
    if (entry->path().native().ends_with(kRedoEnd)) paths.push_back(entry->path());
  }
  return paths;
}

}  // namespace

std::string RedoPath(const std::string& checkpoint) {
  if (!IsFolder(checkpoint)) return checkpoint + std::string(kRedoEnd);
  return (std::filesystem::path(checkpoint) / kRedoEnd).string();
}

Status CheckSettled(const std::string& checkpoint) {
  std::vector<std::string> redos;
  if (IsFolder(checkpoint)) {
    redos = RedosIn(checkpoint);
  } else {
    redos = {RedoPath(checkpoint), RedoPath(FolderOf(checkpoint))};
  }
  for (const std::string& redo : redos) {
    std::error_code ignored;
    if (!std::filesystem::exists(redo, ignored)) continue;
    const std::string changed = redo.substr(0, redo.size() - kRedoEnd.size());
    return FailedPreconditionError(
        "{}: an apply in place of {} was interrupted ({}); run it again to complete it", checkpoint,
        changed, redo);
  }
  return OkStatus();
}

}  // namespace dws::checkpoint
