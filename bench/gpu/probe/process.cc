#include "bench/gpu/probe/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

extern char** environ;

namespace harmony::bench {
namespace {

constexpr int kParentDescriptor = 3;
// Seconds: a context of the driver is torn down within a few.
constexpr double kPatience = 10;
constexpr size_t kLongestMessage = 8192;

std::vector<std::string> CommandLine(const std::string& role,
                                     const std::vector<std::string>& arguments) {
  const Settings& settings = TheSettings();
  std::vector<std::string> line = {"probe", "--role", role, "--device",
                                   std::to_string(settings.device)};
  if (settings.quick) line.push_back("--quick");
  if (!settings.cublas.empty()) {
    line.push_back("--cublas");
    line.push_back(settings.cublas);
  }
  line.push_back("--");
  line.insert(line.end(), arguments.begin(), arguments.end());
  return line;
}

pid_t Start(std::vector<std::string> line, int socket) {
  std::vector<char*> pointers;
  for (std::string& word : line) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, kParentDescriptor);
  pid_t pid = -1;
  const int failed =
      posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) Fail(Format("starting a process: %s", strerror(failed)));
  return pid;
}

}  // namespace

Settings& TheSettings() {
  static Settings settings;
  return settings;
}

void Channel::Send(const std::string& text, int descriptor_to_pass) const {
  iovec part = {const_cast<char*>(text.data()), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor_to_pass >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor_to_pass, sizeof(int));
  }
  const ssize_t sent = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
  if (sent < 0 && descriptor_to_pass >= 0 && errno != EPIPE) {
    Fail(Format("passing a descriptor: %s", strerror(errno)));
  }
}

Message Channel::Receive() const {
  std::string buffer(kLongestMessage, '\0');
  iovec part = {buffer.data(), buffer.size()};
  msghdr message = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size = -1;
  do {
    size = recvmsg(descriptor_, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  Message received;
  if (size <= 0) {
    received.ended = true;
    return received;
  }
  received.text.assign(buffer.data(), static_cast<size_t>(size));
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    memcpy(&received.descriptor, CMSG_DATA(header), sizeof(int));
  }
  return received;
}

bool Channel::Readable(int wait_ms) const {
  pollfd entry = {descriptor_, POLLIN, 0};
  return poll(&entry, 1, wait_ms) > 0;
}

const Channel& Parent() {
  static const Channel channel(kParentDescriptor);
  return channel;
}

Process::Process(const std::string& role, const std::vector<std::string>& arguments) : role_(role) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    Fail(Format("making a socket: %s", strerror(errno)));
  }
  pid_ = Start(CommandLine(role, arguments), ends[1]);
  close(ends[1]);
  channel_ = Channel(ends[0]);
  // Absent on old kernels: AwaitExit then waits for the process by its id.
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

Process::~Process() {
  if (pid_ > 0) {
    Kill();
    Reap();
  }
  if (pidfd_ >= 0) close(pidfd_);
  if (channel_.descriptor() >= 0) close(channel_.descriptor());
}

void Process::Send(const std::string& text, int descriptor_to_pass) const {
  channel_.Send(text, descriptor_to_pass);
}

std::string Process::Expect(const std::string& word, int* descriptor) const {
  const Message message = channel_.Receive();
  if (message.ended) Fail("the " + role_ + " process ended without an answer");
  if (message.text.rfind("fail\t", 0) == 0) Fail(role_ + ": " + message.text.substr(5));
  if (message.text.rfind(word, 0) != 0) {
    Fail("the " + role_ + " process said '" + message.text + "', not '" + word + "'");
  }
  if (descriptor != nullptr) *descriptor = message.descriptor;
  return message.text.substr(word.size());
}

std::string Process::Ask(const std::string& text, const std::string& word) const {
  Send(text);
  return Expect(word);
}

void Process::Kill() const {
  // Only a part leads a group, which has the processes that it started.
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);
}

void Process::Reap() const {
  const double end = NowSeconds() + kPatience;
  bool own = false, group = false;
  while ((!own || !group) && NowSeconds() < end) {
    if (!own && waitpid(pid_, nullptr, WNOHANG) != 0) own = true;
    // Those that a killed part had started are this process's children now
    // (PR_SET_CHILD_SUBREAPER).
    if (!group && waitpid(-pid_, nullptr, WNOHANG) < 0) group = true;
    Nap(200);
  }
}

double Process::AwaitExit() const {
  if (pidfd_ >= 0) {
    pollfd entry = {pidfd_, POLLIN, 0};
    while (poll(&entry, 1, -1) < 0 && errno == EINTR) {
    }
  } else {
    siginfo_t info;
    while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
  }
  return NowSeconds();
}

void Process::End() {
  shutdown(channel_.descriptor(), SHUT_RDWR);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Fail(const std::string& why) {
  Parent().Send("fail\t" + why);
  _exit(1);
}

std::string Format(const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<double> Numbers(const std::string& text, size_t count) {
  std::vector<double> numbers;
  for (const std::string& word : Words(text)) numbers.push_back(strtod(word.c_str(), nullptr));
  if (numbers.size() < count) Fail("too few numbers in '" + text + "'");
  return numbers;
}

double NowSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void Nap(int microseconds) {
  const timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000L};
  nanosleep(&pause, nullptr);
}

}  // namespace harmony::bench
