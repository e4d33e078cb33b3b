// The archive is ustar: a head of 512 bytes for each file, its bytes up to a multiple of 512, and
// two empty blocks at the end.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/base/check.h"
#include "common/base/file_system.h"
#include "common/base/unique_fd.h"
#include "tools/dwsctl/report/report.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kTarBlock = 512;
constexpr int kGzipWindow = 15 + 16;  // zlib's sign for a head of gzip

struct TarField {
  size_t offset;
  size_t size;
};
constexpr TarField kName{0, 100}, kMode{100, 8}, kOwner{108, 8}, kGroup{116, 8}, kSize{124, 12},
    kTime{136, 12}, kSum{148, 8}, kType{156, 1}, kMagic{257, 8};

std::string TarHead(const std::string& name, size_t size_bytes, int64_t unix_seconds) {
  std::string head(kTarBlock, '\0');
  const auto put = [&head](TarField field, std::string_view text) {
    DWS_CHECK(text.size() <= field.size);
    head.replace(field.offset, text.size(), text);
  };
  put(kName, name);
  put(kMode, "0000640");
  put(kOwner, "0000000");
  put(kGroup, "0000000");
  put(kSize, fmt::format("{:011o}", size_bytes));
  put(kTime, fmt::format("{:011o}", unix_seconds));
  put(kType, "0");
  put(kMagic, std::string_view("ustar\00000", 8));
  put(kSum, "        ");  // what the sum is made with
  unsigned sum = 0;
  for (const char c : head) sum += static_cast<unsigned char>(c);
  put(kSum, fmt::format("{:06o}", sum) + '\0' + ' ');
  return head;
}

Result<std::string> Gzip(const std::string& bytes) {
  z_stream stream = {};
  int code = ::deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, 8,
                            Z_DEFAULT_STRATEGY);
  if (code != Z_OK) return InternalError("zlib: deflateInit2 returned {}", code);
  std::string out(::deflateBound(&stream, bytes.size()), '\0');
  std::string in = bytes;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  code = ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  if (code != Z_STREAM_END) return InternalError("zlib: deflate returned {}", code);
  return out;
}

bool IsArchive(const std::string& path) {
  return path.ends_with(".tar.gz") || path.ends_with(".tgz");
}

// "report" of "/tmp/report.tar.gz".
std::string FolderIn(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  name.erase(name.rfind(name.ends_with(".tgz") ? ".tgz" : ".tar.gz"));
  return name.substr(0, kName.size / 2);
}

}  // namespace

Result<std::string> TarGz(const std::vector<Report::Part>& parts, const std::string& folder,
                          int64_t unix_seconds) {
  std::string tar;
  for (const Report::Part& part : parts) {
    tar += TarHead(fmt::format("{}/{}", folder, part.name), part.text.size(), unix_seconds);
    tar += part.text;
    tar.append((kTarBlock - part.text.size() % kTarBlock) % kTarBlock, '\0');
  }
  tar.append(2 * kTarBlock, '\0');
  return Gzip(tar);
}

Status WriteReport(const std::vector<Report::Part>& parts, const std::string& path,
                   int64_t unix_seconds) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    return MakeStatus(absl::StatusCode::kAlreadyExists,
                      fmt::format("{} exists: name a path where there is nothing", path));
  }
  PosixFileSystem files;
  if (IsArchive(path)) {
    DWS_ASSIGN_OR_RETURN(const std::string bytes, TarGz(parts, FolderIn(path), unix_seconds));
    // Nothing that others may have put there is followed or written to.
    const UniqueFd made(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made.valid()) return ErrnoError(errno, path);
    DWS_ASSIGN_OR_RETURN(const auto file, files.OpenForAppend(path));
    DWS_RETURN_IF_ERROR(file->Append(AsBytes(bytes)));
    return file->Sync();
  }
  if (::mkdir(path.c_str(), 0750) != 0) return ErrnoError(errno, path);
  for (const Report::Part& part : parts) {
    DWS_RETURN_IF_ERROR(
        files.ReplaceFile(fmt::format("{}/{}", path, part.name), AsBytes(part.text)));
  }
  return OkStatus();
}

}  // namespace dws::dwsctl
