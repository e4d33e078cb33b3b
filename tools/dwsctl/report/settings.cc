// Nothing of a value is shown unless options.h knows its name.
#include "tools/dwsctl/report/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "common/service/config/config_file.h"
#include "tools/dwsctl/report/daemon_process.h"
#include "tools/dwsctl/report/options.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kProcBytesMax = 256 << 10;
constexpr size_t kFileBytesMax = 1 << 20;
constexpr size_t kSecretFileBytesMax = 64 << 10;
constexpr std::string_view kOurs = "DWS_";

// Variables of others that say how a daemon runs. None of them is a secret.
bool IsShownVariable(std::string_view name) {
  return std::ranges::any_of(
      std::array{"NCCL_", "FI_", "CUDA_", "NVIDIA_", "MALLOC_", "GRPC_", "LD_LIBRARY_PATH"},
      [&](const char* prefix) { return name.starts_with(prefix); });
}

// DWS_RETAIN_BYTES is retain-bytes.
std::string OptionOf(std::string_view variable) {
  std::string name(variable.substr(kOurs.size()));
  for (char& c : name) {
    if (c == '_') c = '-';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

// A path as the process sees it, also in a container.
std::string SeenBy(pid_t pid, const std::string& path) {
  return path.starts_with('/') ? fmt::format("/proc/{}/root{}", pid, path)
                               : fmt::format("/proc/{}/cwd/{}", pid, path);
}

}  // namespace

void DaemonSettings::Add(const std::string& shown_name, const std::string& name,
                         const std::string& value) {
  values_.try_emplace(name, value);
  if (!IsShownOption(name)) {
    redactor_.LearnWords(value);
    text_ += fmt::format("{} = {}\n", shown_name, kLeftOut);
    return;
  }
  redactor_.LearnUrls(value);
  text_ += fmt::format("{} = {}\n", shown_name, value);
}

void DaemonSettings::AddFlags(const std::vector<std::string>& words) {
  text_ += "# flags\n";
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with("--")) {  // it belongs to no flag
      redactor_.LearnWords(word);
      text_ += fmt::format("{}\n", kLeftOut);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string shown = word.substr(0, equals);
    std::string value = equals == std::string::npos ? "true" : word.substr(equals + 1);
    if (equals == std::string::npos && i + 1 < words.size() && !words[i + 1].starts_with("--")) {
      value = words[++i];
    }
    Add(shown, shown.substr(2), value);
  }
}

void DaemonSettings::AddEnvironment(const std::vector<std::string>& variables) {
  text_ += "\n# environment\n";
  for (const std::string& variable : variables) {
    const size_t equals = std::min(variable.find('='), variable.size());
    const std::string name = variable.substr(0, equals);
    const std::string value = variable.substr(std::min(equals + 1, variable.size()));
    if (name.starts_with(kOurs)) {
      Add(name, OptionOf(name), value);
    } else if (NamesSecret(name)) {
      // Digits are a number of something, and would be left out of longer ones.
      if (value.find_first_not_of("0123456789") != std::string::npos) redactor_.Learn(value);
      if (name.starts_with("AWS_")) text_ += fmt::format("{} = {}\n", name, kLeftOut);
    } else if (IsShownVariable(name)) {
      redactor_.LearnUrls(value);
      text_ += fmt::format("{} = {}\n", name, value);
    } else {
      redactor_.LearnUrls(value);  // a proxy's password
    }
  }
}

void DaemonSettings::AddFile(const std::string& path, std::string_view content) {
  text_ += fmt::format("\n# {}\n", path);
  const ConfigFileContent parsed = ParseConfigFile(content);
  for (const ConfigEntry& entry : parsed.entries) {
    Add(entry.key, entry.key, fmt::format("{}", fmt::join(entry.values, ",")));
  }
  // The text of a mistake may quote a value.
  for (const ConfigLineMistake& mistake : parsed.mistakes) {
    text_ += fmt::format("line {}: a mistake; --check-config says which\n", mistake.line);
  }
}

void DaemonSettings::AddNote(std::string_view note) { text_ += fmt::format("\n# {}\n", note); }

std::string DaemonSettings::ValueOf(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second;
}

Result<DaemonSettings> ReadSettings(pid_t pid, Redactor& redactor) {
  DaemonSettings settings(redactor);
  const auto read = [pid](const char* name) {
    return ReadPseudoFile(fmt::format("/proc/{}/{}", pid, name), kProcBytesMax);
  };
  DWS_ASSIGN_OR_RETURN(const std::string flags, read("cmdline"));
  DWS_ASSIGN_OR_RETURN(const std::string environment, read("environ"));
  settings.AddFlags(SplitAtZeros(flags));
  settings.AddEnvironment(SplitAtZeros(environment));
  if (const std::string path = settings.ValueOf("config"); !path.empty()) {
    const Result<std::string> content = ReadPseudoFile(SeenBy(pid, path), kFileBytesMax);
    if (content.ok()) settings.AddFile(path, *content);
    if (!content.ok()) settings.AddNote(Message(content.status()));
  }
  for (const std::string_view name : SecretFileOptions()) {
    const std::string path = settings.ValueOf(name);
    if (path.empty()) continue;
    const auto content = ReadPseudoFile(SeenBy(pid, path), kSecretFileBytesMax);
    if (content.ok()) redactor.LearnWords(*content);
  }
  return settings;
}

}  // namespace dws::dwsctl
