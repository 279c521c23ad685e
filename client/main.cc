// harmony: the command line. Parses, then hands over to client/commands.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/command_line/completion.h"
#include "client/command_line/manual.h"
#include "client/commands/complete.h"
#include "client/commands/doctor.h"
#include "client/commands/down.h"
#include "client/commands/export.h"
#include "client/commands/inspect.h"
#include "client/commands/jobs.h"
#include "client/commands/profile.h"
#include "client/commands/prune.h"
#include "client/commands/run.h"
#include "client/commands/trace.h"
#include "client/commands/units.h"
#include "client/commands/up.h"
#include "common/base/build_identity.h"

namespace harmony::client {
namespace {

// All that the command line can set; one command reads its share of it.
struct Arguments {
  GlobalOptions global;
  UpOptions up;
  DownOptions down;
  RunOptions run;
  JobOptions submit;
  PlanOptions plan;
  ProfileOptions profile;
  DoctorOptions doctor;
  LogsOptions logs;
  PruneOptions prune;
  TraceOptions trace;
  ExportOptions exported;
  ClusterOptions owned;
  StartProcessOptions process;
  std::string job_id, shell;
  std::function<int()> command;
};

// An empty value is a slip of a shell script, not a wish for the default.
std::string CheckNotEmpty(const std::string& value) {
  return value.empty() ? "must not be empty" : "";
}

// In place of CLI11's, which names a range of 309 digits.
std::string CheckNotNegative(const std::string& value) {
  return value.rfind('-', 0) == 0 ? "must be 0 or more" : "";
}

void AddJob(CLI::App* app, JobOptions& job, bool overwrite) {
  app->add_option("job", job.path, "Job file (YAML)")
      ->required()
      ->type_name("JOB.yaml")
      ->check(CheckNotEmpty);
  app->add_option("--set", job.overrides, "Override a key of the job file")
      ->type_name("key=value")
      ->allow_extra_args(false);
  if (overwrite) {
    app->add_flag("--overwrite", job.overwrite, "Move an output_dir that holds another run aside");
  }
}

void AddProfile(CLI::App* app, JobOptions& job) {
  app->add_option("--profile", job.profile, "Plan by measured times (see `harmony profile`)")
      ->type_name("P.json")
      ->check(CheckNotEmpty);
  app->add_option("--plan", job.plan, "This plan instead of a search (`harmony plan --json`)")
      ->type_name("FILE")
      ->check(CheckNotEmpty);
}

void AddCalibration(CLI::App* app, JobOptions& job) {
  CLI::Option* never =
      app->add_flag("!--no-calibrate", job.calibrate,
                    "Where speeds are not given, plan by guesses: measure nothing");
  app->add_flag("--recalibrate", job.recalibrate,
                "Measure such speeds again, as when the machine was busy before")
      ->excludes(never);
}

void AddCluster(CLI::App* app, ClusterOptions& cluster) {
  app->add_option("--config", cluster.config,
                  "File with the keys devices (a SPEC or a list of them) and host_memory")
      ->type_name("CLUSTER.yaml")
      ->check(CheckNotEmpty);
  app->add_option("--devices", cluster.devices,
                  "e.g. cuda, cuda:0,mem=20GiB, sim*4:mem=256MiB; unequal ones: 'sim:mem=1GiB; "
                  "sim:mem=512MiB' (default: the GPUs of this machine, else one that is emulated)")
      ->type_name("SPEC")
      ->check(CheckNotEmpty);
  app->add_option("--host-memory", cluster.host_memory,
                  "Virtual size of the host segment (default: 80% of what is available)")
      ->type_name("BYTES")
      ->check(CheckNotEmpty);
}

// Who may reach the coordinator.
void AddAccess(CLI::App* app, AccessOptions& access) {
  app->add_option("--socket-group", access.socket_group,
                  "Members of this group may open the socket, too: to read, unless allowed more")
      ->type_name("GROUP")
      ->check(CheckNotEmpty);
  app->add_option("--listen", access.listen,
                  "Serve other machines, too, with TLS on both sides: takes the next three and "
                  "--allow cert:...")
      ->type_name("HOST:PORT")
      ->check(CheckNotEmpty);
  app->add_option("--tls-cert", access.tls_certificate, "Certificate of the coordinator (PEM)")
      ->type_name("FILE")
      ->check(CheckNotEmpty);
  app->add_option("--tls-key", access.tls_key, "Its private key")
      ->type_name("FILE")
      ->check(CheckNotEmpty);
  app->add_option("--tls-client-ca", access.tls_client_ca, "Who signs certificates of clients")
      ->type_name("FILE")
      ->check(CheckNotEmpty);
  app->add_option("--allow", access.allow,
                  "user:NAME=read|change, group:NAME=... or cert:NAME=..., once for each")
      ->type_name("RULE")
      ->allow_extra_args(false);
}

// A command about one job, named on the command line.
CLI::Option* AddJobCommand(CLI::App& app, Arguments& args, const std::string& name,
                           const std::string& help,
                           int (*command)(const GlobalOptions&, const std::string&)) {
  CLI::App* sub = app.add_subcommand(name, help);
  sub->callback([&args, command] {
    args.command = [&args, command] { return command(args.global, args.job_id); };
  });
  return sub->add_option("job", args.job_id, "Id of the job")->required()->type_name("JOB");
}

void AddProcessCommands(CLI::App& app, Arguments& args) {
  CLI::App* run = app.add_subcommand("run", "Start all, train, show progress, stop all");
  AddJob(run, args.run.job, /*overwrite=*/true);
  AddProfile(run, args.run.job);
  AddCalibration(run, args.run.job);
  AddCluster(run, args.run.cluster);
  run->add_option(
         "--trace", args.run.trace,
         "Write what ran when in the last steps, and what the plan says, as a Chrome trace")
      ->type_name("FILE")
      ->check(CheckNotEmpty);
  run->callback([&] { args.command = [&] { return RunCommand(args.global, args.run); }; });

  CLI::App* up = app.add_subcommand("up", "Start and supervise the processes");
  AddCluster(up, args.up.cluster);
  AddAccess(up, args.up.access);
  up->add_flag("--detach", args.up.detach, "Return when they are up; else stay in the foreground");
  up->add_option("--report-fd", args.up.report_fd)->group("");
  up->add_flag("--private", args.up.private_use)->group("");
  up->add_flag("--remove-dir", args.up.remove_dir)->group("");
  up->add_option("--jobs-since", args.up.jobs_since)->group("");
  up->callback([&] { args.command = [&] { return UpCommand(args.global, args.up); }; });

  CLI::App* down = app.add_subcommand("down", "Stop them, and wait until all are gone");
  down->add_flag("--now", args.down.now,
                 "Without a checkpoint: what was trained since the last is lost");
  down->add_flag("--say-losses", args.down.say_losses, "")
      ->group("");  // of `up`, when it is told twice
  down->callback([&] { args.command = [&] { return DownCommand(args.global, args.down); }; });
}

// What systemd runs: not shown.
void AddUnitCommands(CLI::App& app, Arguments& args) {
  CLI::App* own = app.add_subcommand("own-memory", "The memory of units of systemd")->group("");
  AddCluster(own, args.owned);
  own->callback([&] { args.command = [&] { return OwnMemoryCommand(args.global, args.owned); }; });

  CLI::App* start = app.add_subcommand("start-process", "One process of such a unit")->group("");
  start->add_option("role", args.process.role)
      ->required()
      ->check(CLI::IsMember({"coordinator", "swapper", "host", "worker"}));
  start->add_option("device", args.process.device)->check(CheckNotNegative);
  start->add_flag("--ended", args.process.ended, "It has ended, as systemd's variables tell");
  AddAccess(start, args.process.access);  // of the coordinator
  start->callback(
      [&] { args.command = [&] { return StartProcessCommand(args.global, args.process); }; });
}

void AddJobCommands(CLI::App& app, Arguments& args) {
  CLI::App* submit = app.add_subcommand("submit", "Queue a job");
  AddJob(submit, args.submit, /*overwrite=*/true);
  AddProfile(submit, args.submit);
  AddCalibration(submit, args.submit);
  submit->callback([&] { args.command = [&] { return SubmitCommand(args.global, args.submit); }; });

  CLI::App* list = app.add_subcommand("list", "All jobs");
  list->callback([&] { args.command = [&] { return ListCommand(args.global); }; });

  CLI::App* status = app.add_subcommand("status", "Processes and jobs, or one job");
  status->add_option("job", args.job_id, "Id of the job")->type_name("JOB");
  status->callback([&] { args.command = [&] { return StatusCommand(args.global, args.job_id); }; });

  AddJobCommand(app, args, "watch", "Show progress until the job (default: the running one) ends",
                WatchCommand)
      ->required(false);
  AddJobCommand(app, args, "cancel", "Finish the step, write a checkpoint, end the job",
                CancelCommand);
  AddJobCommand(app, args, "pause", "As cancel, but `resume` continues it", PauseCommand);
  AddJobCommand(app, args, "resume", "Continue a paused job", ResumeCommand);
}

void AddPrune(CLI::App& app, Arguments& args) {
  CLI::App* prune =
      app.add_subcommand("prune", "Forget jobs that have ended; what they wrote stays");
  prune->add_option("--older-than", args.prune.older_than, "Those that ended this long ago")
      ->type_name("30d")
      ->check(CheckNotEmpty);
  prune->add_flag("--all", args.prune.all, "All that have ended");
  prune->callback([&] { args.command = [&] { return PruneCommand(args.global, args.prune); }; });
}

int RunPlan(const Arguments& args) {
  if (args.global.json && args.plan.explain) {
    return Fail(absl::InvalidArgumentError("plan: --explain is text for people: not with --json"));
  }
  if (args.plan.compare && args.plan.explain) {
    return Fail(absl::InvalidArgumentError(
        "plan: --explain is about the plan, --compare about what others do: give one of them"));
  }
  return PlanCommand(args.global, args.plan);
}

void AddExport(CLI::App& app, Arguments& args) {
  CLI::App* exported =
      app.add_subcommand("export", "Write a checkpoint of a run as final/ would be written");
  exported->add_option("run", args.exported.run, "An output_dir, or the id of a job")
      ->required()
      ->type_name("RUN_DIR_OR_JOB")
      ->check(CheckNotEmpty);
  exported
      ->add_option("--checkpoint", args.exported.checkpoint,
                   "The one of this step (default: the newest)")
      ->type_name("STEP");
  exported
      ->add_option("--dtype", args.exported.dtype,
                   "Type of the weights (default: as the job's export_dtype says)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  exported->add_option("-o,--output", args.exported.output, "Directory to make")
      ->required()
      ->type_name("DIR")
      ->check(CheckNotEmpty);
  exported->callback(
      [&] { args.command = [&] { return ExportCommand(args.global, args.exported); }; });
}

void AddInspection(CLI::App& app, Arguments& args) {
  CLI::App* logs = app.add_subcommand("logs", "Last log lines of the processes");
  logs->add_option("job", args.logs.job_id, "What was reported of this job instead")
      ->type_name("JOB");
  logs->add_option("--process", args.logs.process, "Only this one, e.g. worker-0")
      ->type_name("PROCESS");
  logs->add_option("-n,--lines", args.logs.lines, "Lines of each")
      ->check(CheckNotNegative)
      ->capture_default_str();
  logs->add_flag("-f,--follow", args.logs.follow, "And then the lines that come, until Ctrl-C");
  logs->callback([&] { args.command = [&] { return LogsCommand(args.global, args.logs); }; });

  CLI::App* plan = app.add_subcommand("plan", "What a job needs, and whether it fits");
  AddJob(plan, args.plan.job, /*overwrite=*/false);
  AddProfile(plan, args.plan.job);
  AddCalibration(plan, args.plan.job);
  AddCluster(plan, args.plan.cluster);
  plan->add_flag("--explain", args.plan.explain,
                 "Say why: what binds, a step in time, and what was not taken");
  plan->add_flag("--compare", args.plan.compare,
                 "Beside what people do today (swapping, ZeRO, FSDP): times, bytes, memory");
  plan->callback([&] { args.command = [&] { return RunPlan(args); }; });

  CLI::App* trace =
      app.add_subcommand("trace", "Write what ran when, and what the plan says, as a Chrome trace");
  trace->add_option("job", args.trace.job_id, "Id of the job")->required()->type_name("JOB");
  trace->add_option("-o,--output", args.trace.output, "File to write")
      ->required()
      ->type_name("FILE")
      ->check(CheckNotEmpty);
  trace
      ->add_option("--last-steps", args.trace.last_steps,
                   "This many completed steps and those under way; 0: all that are kept")
      ->check(CheckNotNegative)
      ->capture_default_str();
  trace->callback([&] { args.command = [&] { return TraceCommand(args.global, args.trace); }; });

  CLI::App* profile = app.add_subcommand("profile", "Measure a job's layers on the devices");
  AddJob(profile, args.profile.job, /*overwrite=*/false);
  AddCluster(profile, args.profile.cluster);
  profile->add_option("-o,--output", args.profile.output, "File to write")
      ->required()
      ->type_name("P.json")
      ->check(CheckNotEmpty);
  profile->add_flag("--quick", args.profile.quick, "One microbatch size, in a few seconds");
  profile->add_flag("--recalibrate", args.profile.again, "Measure anew, whatever is cached");
  profile->callback(
      [&] { args.command = [&] { return ProfileCommand(args.global, args.profile); }; });
  CLI::App* doctor = app.add_subcommand("doctor", "Whether this machine is ready, and what to do");
  AddCluster(doctor, args.doctor.cluster);
  doctor->add_flag("--clean", args.doctor.clean, "Remove what dead runs left");
  doctor->callback([&] { args.command = [&] { return DoctorCommand(args.global, args.doctor); }; });
  AddExport(app, args);
}

int Print(const std::string& text) { return fputs(text.c_str(), stdout) < 0 ? 1 : 0; }

// What is written from the declaration of all the others.
void AddDescriptions(CLI::App& app, Arguments& args) {
  CLI::App* completion = app.add_subcommand(
      "completion", "Print what makes a shell complete command lines: eval \"$(...)\"");
  completion->add_option("shell", args.shell, "The shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  completion->callback([&] { args.command = [&] { return Print(CompletionScript(args.shell)); }; });
  CLI::App* manual = app.add_subcommand("manual", "Print the manual page")->group("");
  manual->callback([&] {
    args.command = [&app] { return Print(Manual(app, absl::StrCat("harmony ", BuildIdentity()))); };
  });
}

// A coordinator on another machine.
void AddElsewhere(CLI::App& app, GlobalOptions& global) {
  app.add_option(
         "--address", global.address,
         "A coordinator elsewhere, that was started with --listen ($HARMONY_ADDRESS); takes "
         "the next three")
      ->type_name("HOST:PORT")
      ->check(CheckNotEmpty);
  app.add_option("--tls-ca", global.tls.ca, "Who signed its certificate (PEM)")
      ->type_name("FILE")
      ->envname("HARMONY_TLS_CA");
  app.add_option("--tls-cert", global.tls.certificate, "Certificate to show it")
      ->type_name("FILE")
      ->envname("HARMONY_TLS_CERT");
  app.add_option("--tls-key", global.tls.key, "The private key of that")
      ->type_name("FILE")
      ->envname("HARMONY_TLS_KEY");
}

// Where the command's coordinator is, when the command can do with one elsewhere. The variable says
// nothing to the others; the option is a mistake there.
absl::Status SettleAddress(const std::string& command, GlobalOptions& global) {
  constexpr absl::string_view kElsewhere[] = {"submit", "list",   "status", "watch", "logs", "plan",
                                              "pause",  "resume", "cancel", "prune", "trace"};
  if (std::find(std::begin(kElsewhere), std::end(kElsewhere), command) != std::end(kElsewhere)) {
    const char* const variable = std::getenv("HARMONY_ADDRESS");
    if (global.address.empty() && variable != nullptr) global.address = variable;
    return absl::OkStatus();
  }
  if (global.address.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(command, " is about this machine and takes no --address; with it go ",
                   absl::StrJoin(kElsewhere, ", ")));
}

int Main(int argc, char** argv) {
  CLI::App app("Harmony trains deep networks larger than GPU memory.", "harmony");
  Arguments args;
  app.set_version_flag("--version", absl::StrCat("harmony ", BuildIdentity()));
  app.require_subcommand(1);
  app.fallthrough();
  app.add_flag("--json", args.global.json, "Machine-readable output");
  app.add_option("--runtime-dir", args.global.runtime_dir,
                 "Socket and lock (default: $XDG_RUNTIME_DIR/harmony, else ~/.harmony)")
      ->type_name("DIR")
      ->envname("HARMONY_RUNTIME_DIR");
  app.add_option("--state-dir", args.global.state_dir,
                 "Job database and logs (default: ~/.local/state/harmony)")
      ->type_name("DIR")
      ->envname("HARMONY_STATE_DIR");
  app.add_option("--bin-dir", args.global.bin_dir,
                 "Where the other programs are (default: beside this one)")
      ->type_name("DIR");
  AddElsewhere(app, args.global);
  AddProcessCommands(app, args);
  AddUnitCommands(app, args);
  AddJobCommands(app, args);
  AddPrune(app, args);
  AddInspection(app, args);
  AddDescriptions(app, args);
  // What follows are words of another command line, not options of this one.
  if (argc > 1 && absl::string_view(argv[1]) == "complete") {
    return CompleteCommand(app, {argv + 2, argv + argc});
  }
  // Before anything is parsed: a flag behind a mistake is not read.
  const bool json = std::find(argv, argv + argc, absl::string_view("--json")) != argv + argc;
  if (json) FailInJson();
  const auto exit = [&](const CLI::ParseError& error) {
    const bool failed = error.get_exit_code() != 0;  // --help and --version are none
    if (!failed) return app.exit(error);
    return Fail(absl::InvalidArgumentError(absl::StrCat(error.what(), " (--help says more)")));
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    if (const auto unknown = app.remaining(); app.get_subcommands().empty() && !unknown.empty()) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("there is no command '", unknown.front(), "'; see harmony --help")));
    }
    return exit(error);
  } catch (const CLI::ParseError& error) {
    return exit(error);
  }
  if (const absl::Status settled =
          SettleAddress(app.get_subcommands().front()->get_name(), args.global);
      !settled.ok()) {
    return Fail(settled);
  }
  const int code = args.command();
  // What nobody got was not said; a run trains on all the same.
  const bool lost = fflush(stdout) != 0 || ferror(stdout) != 0;
  if (code != 0 || !lost || app.get_subcommands().front()->get_name() == "run") return code;
  return Fail(absl::UnavailableError("standard output: it could not be written"));
}

}  // namespace
}  // namespace harmony::client

int main(int argc, char** argv) {
  // Else the first files that are opened would stand in for what was closed.
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = dup(fd);
  if (fd > STDERR_FILENO) close(fd);
  return harmony::client::Main(argc, argv);
}
