#include "tools/dwsctl/base/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace dws::dwsctl {
namespace {

constexpr size_t kColumnsMin = 20;
constexpr size_t kColumnsMax = 1000;  // also limits $COLUMNS
constexpr size_t kRowsMin = 2;
constexpr size_t kRowsMax = 1000;

// Returns 0, or errno of the failed write.
int WriteAll(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

std::optional<size_t> FromEnvironment(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits(text);
  size_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value == 0) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

bool Console::Out(std::string_view text) {
  if (!out_open_) return false;
  const int error = WriteAll(out_, text);
  if (error == 0) return true;
  out_open_ = false;
  if (error != EPIPE) out_errno_ = error;
  return false;
}

void Console::Error(std::string_view text) { WriteAll(error_, text); }

bool Console::out_is_terminal() const { return isatty(out_) == 1; }
bool Console::error_is_terminal() const { return isatty(error_) == 1; }

bool Console::colour() const {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return out_is_terminal() && !dumb && (no_color == nullptr || *no_color == '\0');
}

size_t Console::columns() const {
  winsize size{};
  const int terminal = out_is_terminal() ? out_ : error_;
  size_t columns = FromEnvironment("COLUMNS").value_or(80);
  if (isatty(terminal) == 1 && ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    columns = size.ws_col;
  }
  return std::clamp(columns, kColumnsMin, kColumnsMax);
}

size_t Console::rows() const {
  winsize size{};
  size_t rows = FromEnvironment("LINES").value_or(24);
  if (out_is_terminal() && ioctl(out_, TIOCGWINSZ, &size) == 0 && size.ws_row > 0) {
    rows = size.ws_row;
  }
  return std::clamp(rows, kRowsMin, kRowsMax);
}

}  // namespace dws::dwsctl
