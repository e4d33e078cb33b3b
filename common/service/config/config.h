// What a daemon is set to, in four layers, each over the one before: defaults, a TOML file
// (--config or DWS_CONFIG), the environment, flags. An option is declared once, as a CLI11 option;
// `--retain-bytes`, `retain-bytes = ` in the file and DWS_RETAIN_BYTES are the same.
//
// Nothing stops at the first mistake: all are collected, each with the place it was made in.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/file_system.h"
#include "common/service/config/config_file.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dws {

// Lifecycle: the app and what its options are bound to outlive it. Threads: one.
class Config {
 public:
  struct Sources {
    std::vector<std::string> arguments;    // without the program's name
    std::vector<std::string> environment;  // "NAME=value"
  };
  struct Mistake {
    std::string source;  // "/etc/dws/sender.toml:3", "environment DWS_THREADS", "flag --threads"
    std::string text;
  };

  // Reads all layers into the variables that the options of `app` are bound to. Where a layer is
  // mistaken, the one below it holds. An empty environment variable is none; a list is written
  // there with commas. A layer's list replaces the one below, it is not added to it.
  static Config Load(CLI::App& app, FileSystem& files, const Sources& sources);

  // Which layer the value is of: "default", or as in Mistake. The name is an option's, without
  // dashes.
  std::string SourceOf(std::string_view name) const;
  bool IsDefault(std::string_view name) const { return SourceOf(name) == "default"; }
  // Replaces a default that depends on other options.
  void Derive(std::string_view name, const std::string& value);
  // A mistake that only a look at several options shows; it has the place of this one.
  void Reject(std::string_view name, std::string_view text);

  const std::vector<Mistake>& mistakes() const { return mistakes_; }
  // DWS_* variables that no option has. Others may own them, so they are no mistake.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Every option with its value and its source, as a TOML file that can be loaded.
  std::string EffectiveText() const;
  // Options whose values differ, by name. Of two configurations of one program.
  std::vector<std::string> DifferentFrom(const Config& other) const;

 private:
  struct Setting {
    CLI::Option* option = nullptr;  // not owned
    std::string source = "default";
    std::vector<std::string> values;  // as they took effect
  };

  explicit Config(CLI::App& app);
  void ReadFileLayer(FileSystem& files, const std::string& path);
  // These two: in words what is wrong, or nullopt.
  std::optional<std::string> TakeFileEntry(const std::string& source, const ConfigEntry& entry);
  std::optional<std::string> Set(Setting& setting, const std::vector<std::string>& values,
                                 const std::string& source);
  void SetOrReject(std::string_view name, const std::vector<std::string>& values,
                   const std::string& source);
  void ReadEnvironmentLayer(const std::vector<std::string>& environment);
  void ReadFlagLayer(const std::vector<std::string>& arguments);
  void CheckRequired();
  Setting* Find(std::string_view name);
  std::string WithSuggestion(std::string text, std::string_view name,
                             std::string_view prefix) const;

  std::map<std::string, Setting, std::less<>> settings_;
  std::vector<std::string> order_;  // of declaration
  std::vector<Mistake> mistakes_;
  std::vector<std::string> warnings_;
};

}  // namespace dws
