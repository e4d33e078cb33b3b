// `dwsctl certificates` is one name for several subcommands, which share their flags and errors.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/model/identity_limits.h"
#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/certificates/certificate_run.h"

namespace dws::dwsctl {
namespace {

using Flags = std::shared_ptr<CertificateFlags>;

// Errors of files have a separate exit code.
ExitCode Explain(Console& console, const Status& error) {
  const ExitCode code = Fail(console, error);
  return code == ExitCode::kUsage ? code : ExitCode::kFile;
}

void AddDays(CLI::App& command, CertificateFlags& flags, int days_max) {
  command.add_option("--days", flags.days, "how long it is valid")
      ->type_name("DAYS")
      ->check(CLI::Range(1, days_max).description(""))
      ->capture_default_str();
}
void AddHosts(CLI::App& command, CertificateFlags& flags) {
  command
      .add_option("--host", flags.hosts,
                  "DNS name or address that clients use; loopback is always included")
      ->type_name("HOST");
}
void AddAuthority(CLI::App& command, CertificateFlags& flags) {
  command.add_option("--authority", flags.authority, "the authority's folder: ca.pem and ca.key")
      ->type_name(kFolderValue)
      ->required();
}
void AddOut(CLI::App& command, CertificateFlags& flags, const std::string& what) {
  command.add_option("--out", flags.out, what)->type_name(kFolderValue)->required();
  command.add_flag("--force", flags.force, "replace files that exist already");
}
void AddJobId(CLI::App& command, CertificateFlags& flags) {
  command.add_option("--job-id", flags.job_id, "the daemons' --job-id")
      ->type_name("ID")
      ->required();
}

using Run = Status (*)(const CertificateFlags& flags, Console& console);
CLI::App* AddOne(CLI::App& parent, const std::string& name, const std::string& description,
                 const std::vector<std::string>& examples, const Flags& flags, Run run,
                 Context& context) {
  CLI::App* command = AddCommand(parent, name, description, examples, flags->json);
  command->callback([flags, run, &context] {
    const Status status = run(*flags, context.console);
    context.code = status.ok() ? ExitCode::kOk : Explain(context.console, status);
  });
  return command;
}

void AddAuthorityCommand(CLI::App& parent, Context& context) {
  const auto flags = std::make_shared<CertificateFlags>();
  flags->days = limits::kAuthorityDaysDefault;
  CLI::App* command = AddOne(parent, "authority",
                             "Makes a job's certificate authority.\n"
                             "\n"
                             "Writes ca.pem, which every daemon trusts, and ca.key, which signs "
                             "certificates and belongs on\n"
                             "a machine that is not one of the cluster's.",
                             {"dwsctl certificates authority --job-id my-job --out ca"}, flags,
                             &RunAuthority, context);
  AddJobId(*command, *flags);
  AddOut(*command, *flags, "folder for ca.pem and ca.key");
  AddDays(*command, *flags, limits::kAuthorityDaysMax);
}

void AddIssueCommand(CLI::App& parent, Context& context) {
  const auto flags = std::make_shared<CertificateFlags>();
  CLI::App* command = AddOne(
      parent, "issue",
      "Issues one certificate, with a new key.\n"
      "\n"
      "Writes OUT/ROLE-NAME with ca.pem, cert.pem and key.pem, which the daemon's --tls flags "
      "name.\n"
      "publish: a sender, its name is the trainer rank. receive: a receiver, its --receiver-id.\n"
      "operate: an operator who gives orders with dwsctl, and Prometheus.",
      {"dwsctl certificates issue --authority ca --role publish --name 0 --host trainer0.example "
       "--out tls"},
      flags, &RunIssue, context);
  AddAuthority(*command, *flags);
  command->add_option("--role", flags->role, "publish, receive or operate")
      ->type_name("ROLE")
      ->required();
  command
      ->add_option("--name", flags->name, "a trainer rank, a receiver's id, or an operator's name")
      ->type_name("NAME")
      ->required();
  AddHosts(*command, *flags);
  AddOut(*command, *flags, "folder for the certificate's own folder");
  AddDays(*command, *flags, limits::kCertificateDaysMax);
}

void AddJobCommand(CLI::App& parent, Context& context) {
  const auto flags = std::make_shared<CertificateFlags>();
  CLI::App* command =
      AddOne(parent, "job",
             "Makes the authority, where there is none yet, and all certificates of a job.\n"
             "\n"
             "Each lies in a folder of its own in OUT, ready to be copied to its host.",
             {"dwsctl certificates job --job-id my-job --authority ca --out tls "
              "--publish 0-7@trainer.example \\\n"
              "    --receive rollout-0@engine0.example --receive rollout-1@10.0.0.7 --operate ann"},
             flags, &RunJob, context);
  AddJobId(*command, *flags);
  command->add_option("--authority", flags->authority, "the authority's folder: ca.pem and ca.key")
      ->type_name(kFolderValue)
      ->required();
  command->add_option("--publish", flags->publish, "a trainer rank, or ranks as 0-7")
      ->type_name("RANK[@HOSTS]");
  command->add_option("--receive", flags->receive, "a receiver; HOSTS: with commas between")
      ->type_name("ID[@HOSTS]");
  command->add_option("--operate", flags->operate, "an operator")->type_name("NAME[@HOSTS]");
  AddHosts(*command, *flags);
  AddOut(*command, *flags, "folder for the certificates' folders");
  AddDays(*command, *flags, limits::kCertificateDaysMax);
}

void AddRenewCommand(CLI::App& parent, Context& context) {
  const auto flags = std::make_shared<CertificateFlags>();
  CLI::App* command = AddOne(
      parent, "renew",
      "Renews certificates before they end: same key, identity and hosts.\n"
      "\n"
      "Replaces each file whose certificate expires soon, atomically; nothing else changes. A "
      "daemon\n"
      "loads the new one within seconds. Only the authority's private key is needed, so the "
      "files\n"
      "may be copies. Run it from a timer.",
      {"dwsctl certificates renew --authority ca tls/*/cert.pem"}, flags, &RunRenew, context);
  AddAuthority(*command, *flags);
  command->add_option("FILES", flags->files, "certificates to renew")
      ->type_name(kFileValue)
      ->required();
  command->add_option("--within", flags->within_days, "renew what expires within so many days")
      ->type_name("DAYS")
      ->check(CLI::Range(0, limits::kCertificateDaysMax).description(""))
      ->capture_default_str();
  AddDays(*command, *flags, limits::kCertificateDaysMax);
}

}  // namespace

void AddCertificatesCommand(CLI::App& app, Context& context) {
  CLI::App* parent = AddGroup(
      app, "certificates",
      "Makes and renews the certificates of a job.\n"
      "\n"
      "An authority signs certificates with the identities of deploy/SECURITY.md: EC P-256, "
      "SHA-256.\n"
      "Nothing that exists is overwritten without --force.",
      {"dwsctl certificates authority --job-id my-job --out ca",
       "dwsctl certificates issue --authority ca --role receive --name rollout-0 --out tls",
       "dwsctl certificates renew --authority ca tls/*/cert.pem"});
  AddJobCommand(*parent, context);
  AddAuthorityCommand(*parent, context);
  AddIssueCommand(*parent, context);
  AddRenewCommand(*parent, context);
}

}  // namespace dws::dwsctl
