// Defaults, file, environment and flags of one declaration; every mistake has its source.
#include "common/service/config/config.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/service/config/closest_name.h"
#include "common/service/program/daemon_flags.h"
#include "tests/fakes/fault_file_system.h"

namespace dws {
namespace {

// A program's options, and one load of them.
struct Program {
  std::string id = "default";
  uint32_t rank = 0;
  uint64_t bytes = 1 << 20;
  double ratio = 0.5;
  bool insecure = false;
  std::vector<std::string> peers;
  std::string path;
  bool check = false;
  CLI::App app;
  FaultFileSystem files;

  Program() {
    AddIdFlag(app, "--job-id", id, "");
    app.add_option("--rank", rank)->check(CLI::Range(0U, 9U))->capture_default_str();
    AddSizeFlag(app, "--keep-bytes", bytes, "", {.bytes_min = 1, .bytes_max = uint64_t{1} << 40});
    app.add_option("--ratio", ratio)->capture_default_str();
    app.add_flag("--insecure", insecure);
    app.add_option("--peer", peers);
    app.add_option("--tls-ca", path);
    app.add_option("--config")->configurable(false);
    app.add_flag("--check", check)->configurable(false);
  }

  Config Load(std::string_view file, std::vector<std::string> environment = {},
              std::vector<std::string> arguments = {}) {
    REQUIRE(files.ReplaceFile("/c.toml", AsBytes(file)).ok());
    arguments.insert(arguments.begin(), "--config=/c.toml");
    return Config::Load(app, files, {.arguments = arguments, .environment = environment});
  }
};

std::vector<std::string> Texts(const Config& config) {
  std::vector<std::string> texts;
  for (const Config::Mistake& mistake : config.mistakes()) {
    texts.push_back(mistake.source + ": " + mistake.text);
  }
  return texts;
}

using Lines = std::vector<std::string>;

TEST_CASE("flags override the environment and the environment overrides the file", "[config]") {
  Program program;
  const Config config =
      program.Load("job-id = \"file\"\nrank = 1\nratio = 2\n", {"DWS_RANK=2", "DWS_RATIO=0.25"},
                   {"--rank", "3", "--insecure"});
  CHECK(Texts(config) == Lines{});
  CHECK(program.id == "file");
  CHECK(program.rank == 3);
  CHECK(program.ratio == 0.25);
  CHECK(program.insecure);
  CHECK(program.bytes == 1 << 20);
  CHECK(config.SourceOf("job-id") == "/c.toml:1");
  CHECK(config.SourceOf("rank") == "flag --rank");
  CHECK(config.SourceOf("ratio") == "environment DWS_RATIO");
  CHECK(config.SourceOf("keep-bytes") == "default");
}

TEST_CASE("every mistake of a file is found and has its line", "[config]") {
  Program program;
  const Config config = program.Load(
      "job-id = 7\n"             // 1 wrong type
      "rank = 10\n"              // 2 out of range
      "kepe-bytes = 4\n"         // 3 unknown, close to another
      "keep-bytes = \"4 ox\"\n"  // 4 not a size
      "ratio = = 1\n"            // 5 syntax
      "insecure = 1\n"           // 6 wrong type
      "peer = [\"a\", 7]\n"      // 7 mixed
      "check = true\n"           // 8 only a flag
      "when = 2026-01-01\n"      // 9 a type that no key has
      "zzzzzzzz = 1\n"           // 10 unknown, close to nothing
      "job-id = \"again\"\n");   // 11 duplicate
  const Lines lines = Texts(config);
  REQUIRE(lines.size() == 11);
  CHECK(lines[0] == "/c.toml:1: job-id: expected a string, found an integer");
  CHECK_THAT(lines[1], Catch::StartsWith("/c.toml:2: rank: Value 10 not in range 0 to 9"));
  CHECK(lines[2] == "/c.toml:3: kepe-bytes: there is no such key; did you mean keep-bytes?");
  CHECK_THAT(lines[3], Catch::StartsWith("/c.toml:4: keep-bytes: "));
  CHECK_THAT(lines[4], Catch::StartsWith("/c.toml:5: "));
  CHECK(lines[5] == "/c.toml:6: insecure: expected true or false, found an integer");
  CHECK_THAT(lines[6], Catch::StartsWith("/c.toml:7: peer: expected values of one type"));
  CHECK_THAT(lines[7], Catch::StartsWith("/c.toml:8: check: not a key of the file"));
  CHECK_THAT(lines[8], Catch::StartsWith("/c.toml:9: when: "));
  CHECK(lines[9] == "/c.toml:10: zzzzzzzz: there is no such key");
  CHECK_THAT(lines[10], Catch::StartsWith("/c.toml:11: "));
  // An option with a mistake keeps the value of the layer below.
  CHECK(program.id == "default");
  CHECK(program.rank == 0);
  CHECK(program.bytes == 1 << 20);
}

TEST_CASE("flags and variables are checked like the file", "[config]") {
  Program program;
  const Config config =
      program.Load("rank = 4\n", {"DWS_RANK=many", "DWS_KEEP_BYTES="},
                   {"--ratio=x", "--pear=a", "--rank=1", "--rank=2", "free", "--tls-ca"});
  CHECK(Texts(config) == Lines{"environment DWS_RANK: rank: Value many not in range 0 to 9",
                               "flag --pear: there is no such flag; did you mean --peer?",
                               "flags: 'free': expected --NAME=VALUE",
                               "flag --tls-ca: expected a value after it",
                               "flag --ratio: ratio: expected a number, found 'x'",
                               "flag --rank: rank: given 2 times, expected once"});
  CHECK(program.rank == 4);
}

TEST_CASE("a table's name is a prefix and a key given in both ways is a mistake", "[config]") {
  Program program;
  CHECK(Texts(program.Load("[tls]\nca = \"/a\"\n")) == Lines{});
  CHECK(program.path == "/a");
  CHECK(Texts(program.Load("tls-ca = \"/a\"\n[tls]\nca = \"/b\"\n")) ==
        Lines{"/c.toml:3: tls-ca: given twice, first in line 1"});
}

TEST_CASE("keys under a broken table header are skipped", "[config]") {
  Program program;
  const Config config = program.Load("[tls\nca = \"/a\"\n[keep]\nbytes = 5\n");
  const Lines lines = Texts(config);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Catch::StartsWith("/c.toml:1: "));
  CHECK(program.bytes == 5);
}

TEST_CASE("a list in a higher layer replaces the one below", "[config]") {
  Program program;
  CHECK(Texts(program.Load("peer = [\"a\", \"b\"]\n")) == Lines{});
  CHECK(program.peers == Lines{"a", "b"});
  static_cast<void>(program.Load("peer = [\"a\", \"b\"]\n", {"DWS_PEER=c, d ,"}));
  CHECK(program.peers == Lines{"c", "d"});
  static_cast<void>(program.Load("", {"DWS_PEER=c"}, {"--peer=e", "--peer", "f"}));
  CHECK(program.peers == Lines{"e", "f"});
}

TEST_CASE("sizes are bytes or have a unit", "[config]") {
  Program program;
  for (const std::string text : {"keep-bytes = 268435456", "keep-bytes = \"256MiB\"",
                                 "keep-bytes = \"0.25GiB\"", "keep-bytes = \"256 mib\""}) {
    INFO(text);
    const Config config = program.Load(text + "\n");
    if (text.find('.') != std::string::npos) {
      CHECK(Texts(config).size() == 1);  // whole numbers only
      continue;
    }
    CHECK(Texts(config) == Lines{});
    CHECK(program.bytes == uint64_t{256} << 20);
  }
  for (const std::string text : {"\"-1\"", "-1", "\"99999999999999999999\"", "\"16EiB\"", "0"}) {
    INFO(text);
    CHECK(Texts(program.Load("keep-bytes = " + text + "\n")).size() == 1);
  }
}

TEST_CASE("a required option may be set in any layer", "[config]") {
  const std::string wanted =
      "nowhere: need: has no default and must be set, by --need, DWS_NEED or a line in the file";
  Program program;
  std::string need;
  program.app.add_option("--need", need)->required();
  CHECK(Texts(program.Load("")) == Lines{wanted});
  CHECK(Texts(program.Load("need = \"x\"\n")) == Lines{});
  CHECK(Texts(program.Load("", {"DWS_NEED=x"})) == Lines{});
  CHECK(Texts(program.Load("", {}, {"--need=x"})) == Lines{});
  // A wrong value is not also reported as missing.
  CHECK(Texts(program.Load("need = 7\n")) ==
        Lines{"/c.toml:1: need: expected a string, found an integer"});
}

TEST_CASE("unknown DWS variables are warnings and not mistakes", "[config]") {
  Program program;
  const Config config =
      program.Load("", {"DWS_SENDER_SERVICE_HOST=10.0.0.1", "DWS_RANKS=1", "PATH=/bin"});
  CHECK(Texts(config) == Lines{});
  CHECK(config.warnings() == Lines{"environment DWS_RANKS: no option of this program; did you mean "
                                   "DWS_RANK?",
                                   "environment DWS_SENDER_SERVICE_HOST: no option of this "
                                   "program"});
}

TEST_CASE("a configuration file must exist and be small", "[config]") {
  Program program;
  const Config missing =
      Config::Load(program.app, program.files, {.arguments = {"--config", "/none.toml"}});
  REQUIRE(missing.mistakes().size() == 1);
  CHECK(missing.mistakes()[0].source == "/none.toml");
  CHECK(Texts(program.Load(std::string((1 << 20) + 1, '#'))).size() == 1);
  // The environment can name the file too.
  Program other;
  REQUIRE(other.files.ReplaceFile("/e.toml", AsBytes(std::string_view("rank = 5\n"))).ok());
  static_cast<void>(Config::Load(other.app, other.files, {.environment = {"DWS_CONFIG=/e.toml"}}));
  CHECK(other.rank == 5);
}

TEST_CASE("loading the effective configuration gives the same configuration", "[config]") {
  Program program;
  const Config first = program.Load("tls-ca = \"a \\\"b\\\" \\n\\\\\"\npeer = [\"x\"]\n",
                                    {"DWS_KEEP_BYTES=2KiB", "DWS_INSECURE=yes"}, {"--ratio=0.125"});
  CHECK_THAT(first.EffectiveText(), Catch::Contains("keep-bytes = 2048") &&
                                        Catch::Contains("insecure = true") &&
                                        Catch::Contains("# environment DWS_KEEP_BYTES"));
  Program again;
  const Config second = again.Load(first.EffectiveText());
  CHECK(Texts(second) == Lines{});
  CHECK(again.path == "a \"b\" \n\\");
  CHECK(again.bytes == 2048);
  CHECK(second.DifferentFrom(first) == Lines{});
}

TEST_CASE("an id with unprintable characters is refused with a printable message", "[config]") {
  for (const auto& [id, shown] :
       std::vector<std::pair<std::string, std::string>>{{"a\nE forged", "'a\\x0aE forged'"},
                                                        {"\x1b[31m", "'\\x1b[31m'"},
                                                        {"\u202etxt", "'\\u202etxt'"},
                                                        {"a\xff", "'a\\xff'"}}) {
    Program program;
    const Config config = program.Load("", {}, {"--job-id=" + id});
    REQUIRE(config.mistakes().size() == 1);
    CHECK(Texts(config)[0] ==
          "flag --job-id: job-id: " + shown +
              ", shown here with escapes, has characters that cannot be "
              "printed: expected letters, digits and other characters that can");
    CHECK(program.id == "default");
  }
  Program program;
  CHECK(Texts(program.Load("", {}, {"--job-id=r\u00e4t 1/\u65e5"})) == Lines{});
}

TEST_CASE("a derived default does not replace a value that was set", "[config]") {
  Program program;
  Config config = program.Load("");
  config.Derive("tls-ca", "/derived");
  CHECK(program.path == "/derived");
  CHECK(config.SourceOf("tls-ca") == "default");
  Program given;
  Config other = given.Load("tls-ca = \"/given\"\n");
  other.Derive("tls-ca", "/derived");
  CHECK(given.path == "/given");
  other.Reject("tls-ca", "is alone");
  CHECK(Texts(other) == Lines{"/c.toml:1: tls-ca: is alone"});
}

TEST_CASE("deeply nested tables are a mistake and do not overflow the stack", "[config]") {
  for (const size_t depth : {100, 4'000, 500'000}) {
    std::string name = "a";
    for (size_t i = 1; i < depth; ++i) name += ".a";
    for (const std::string& text : {fmt::format("[{}]\n", name), fmt::format("{} = 1\n", name),
                                    fmt::format("b = {{{} = 1}}\n", name),
                                    fmt::format("[{}]\n{} = {{{} = 1}}\n", name, name, name)}) {
      CHECK_FALSE(ParseConfigFile(text).mistakes.empty());
    }
  }
}

TEST_CASE("malformed text is reported as mistakes and never crashes the reader", "[config]") {
  for (const std::string_view text :
       {"\xff\xfe", "a", "[", "[[", "[.]", "[ [", "[a", "]", "a = \"\"\"", "a = [",
        "[[x]]\na=1\n[[x]]\n", "= 1\n= 2\n", "rank.b.c = 1\nrank = 2\n", "\"\" = 1\n",
        "a = {b = {c = [1, [2]]}}\n"}) {
    Program program;
    INFO(text);
    CHECK_FALSE(program.Load(text).mistakes().empty());
  }
  // Pieces of TOML in any order: the library reports errors and never asserts.
  const std::vector<std::string_view> pieces = {
      "[",     "]",    "{",          "}",    "=", ".",   ",",  "\"",   "\"\"\"", "'",
      "\n",    " ",    "a",          "-",    "1", "1e",  "0x", "true", "#",      "\\",
      "\\u00", "\xc3", "2026-01-01", "T12:", "+", "inf", "\r", "\x01"};
  std::mt19937 random(20);
  for (size_t round = 0; round < 20'000; ++round) {
    std::string text;
    for (size_t i = 0; i < 1 + round % 12; ++i) text += pieces[random() % pieces.size()];
    INFO(text);
    const ConfigFileContent content = ParseConfigFile(text);
    CHECK(content.mistakes.size() + content.entries.size() <= 40);
  }
}

TEST_CASE("the closest name has the fewest inserted or removed or changed or swapped letters",
          "[config]") {
  CHECK(EditDistance("", "abc") == 3);
  CHECK(EditDistance("kitten", "sitting") == 3);
  CHECK(EditDistance("ab", "ba") == 1);
  CHECK(EditDistance("same", "same") == 0);
  const Lines names = {"retain-bytes", "retain-versions", "http"};
  CHECK(ClosestName("retain-byets", names) == "retain-bytes");
  CHECK(ClosestName("htp", names) == "http");
  CHECK(ClosestName("x", names) == std::nullopt);
}

}  // namespace
}  // namespace dws
