// A daemon's configuration, from four layers. Each overrides the one before: defaults, a TOML file
// (--config or DWS_CONFIG), the environment, flags. An option is declared once, as a CLI11 option;
// `--retain-bytes`, `retain-bytes = ` in the file and DWS_RETAIN_BYTES set the same option.
//
// Loading does not stop at the first mistake: it collects all of them, each with its location.
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

// The loaded configuration. Lifecycle: the app, and the variables to which its options are bound,
// must outlive it. Threads: one.
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

  // Reads all layers into the variables that the options of `app` are bound to. If a layer's value
  // is wrong, the value of the layer below stays. An empty environment variable counts as unset; a
  // list is written there with commas. A layer's list replaces the list of the layer below.
  static Config Load(CLI::App& app, FileSystem& files, const Sources& sources);

  // The layer that the value comes from: "default", or as in Mistake. `name` is the option's name
  // without dashes.
  std::string SourceOf(std::string_view name) const;
  // Sets a default that depends on other options.
  void Derive(std::string_view name, const std::string& value);
  // Adds a mistake that involves several options; its source is that of this option.
  void Reject(std::string_view name, std::string_view text);

  const std::vector<Mistake>& mistakes() const { return mistakes_; }
  // DWS_* variables that match no option. Other programs may use them, so they are not mistakes.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Every option with its value and its source, as a TOML file that can be loaded.
  std::string EffectiveText() const;
  // Returns the names of the options whose values differ between two configurations of one program.
  std::vector<std::string> DifferentFrom(const Config& other) const;

 private:
  struct Setting {
    CLI::Option* option = nullptr;  // not owned
    std::string source = "default";
    std::vector<std::string> values;  // those in effect
  };

  explicit Config(CLI::App& app);
  void ReadFileLayer(FileSystem& files, const std::string& path);
  // These two return a text that says what is wrong, or nullopt.
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
  std::vector<std::string> order_;  // in the order of declaration
  std::vector<Mistake> mistakes_;
  std::vector<std::string> warnings_;
};

}  // namespace dws
