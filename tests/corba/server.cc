// A server of the object in latency.idl on omniORB.
//
//     omniorb-server [--name NAME] [--port PORT] [--key KEY] [--ior FILE] [--spin US] [--sleep US]
//                    [--group IOR|file:PATH] [--share SHARE] [--away FILE] [-ORB...]
//
// Says "ready IOR" on standard error when it answers. The object key is KEY (default "Latency"), byte for byte, and
// the same after a restart. Each call takes so many microseconds of processor (--spin) or of waiting (--sleep) more
// than it has to. With --group SIGUSR1 sends clients to the group for as long as SIGUSR2 has not come; with --share,
// too, SIGUSR1 sends this share of them, once. A group's file is waited for; "group known" is said when it has been
// read. The alert is a CORBA object, too, with the key "Alert". While FILE has a reference, the call `who` is sent there,
// for good (LOCATION_FORWARD_PERM).
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include <pthread.h>
#include <unistd.h>

#include "latency.hh"
#include "shed.h"

using std::chrono::microseconds;
using std::chrono::steady_clock;

namespace {

struct Options {
  std::string name = "member";
  std::string key = "Latency";
  std::string port;
  std::string ior;
  std::string group;
  std::string away;
  double share = 0;
  microseconds spin{0};
  microseconds sleep{0};
};

class Latency : public POA_Test::Latency {
public:
  Latency(const Options& options, CORBA::ORB_ptr orb) : options_(options), orb_(orb) {}

  CORBA::Boolean is_prime(CORBA::ULong number) override {
    work();
    if (number < 2) return false;
    for (CORBA::ULong divisor = 2; divisor <= number / divisor; ++divisor)
      if (number % divisor == 0) return false;
    return true;
  }

  char* echo(const char* s) override {
    work();
    return CORBA::string_dup(s);
  }

  CORBA::WChar* echo_wide(const CORBA::WChar* s) override {
    work();
    return CORBA::wstring_dup(s);
  }

  CORBA::Double half(CORBA::Double x) override {
    work();
    return x / 2;
  }

  Test::Octets* blob(const Test::Octets& data) override {
    work();
    return new Test::Octets(data);
  }

  void note(CORBA::ULong) override { notes_ += 1; }

  CORBA::ULong noted() override { return notes_; }

  void fail(CORBA::Boolean user) override {
    if (user) throw Test::Oops(options_.name.c_str());
    throw CORBA::NO_PERMISSION(7, CORBA::COMPLETED_NO);
  }

  char* who() override {
    work();
    // As a server does whose object has moved, it believes for ever.
    std::string elsewhere;
    if (!options_.away.empty() && std::ifstream(options_.away) >> elsewhere)
      throw omniORB::LOCATION_FORWARD(orb_->string_to_object(elsewhere.c_str()), true);
    return CORBA::string_dup(options_.name.c_str());
  }

private:
  void work() const {
    if (options_.sleep.count() > 0) std::this_thread::sleep_for(options_.sleep);
    const auto end = steady_clock::now() + options_.spin;
    while (steady_clock::now() < end) continue;
  }

  const Options& options_;
  const CORBA::ORB_ptr orb_;
  std::atomic<CORBA::ULong> notes_{0};
};

// A line at once: several threads talk.
void say(const std::string& line) { std::cerr << line + "\n" << std::flush; }

[[noreturn]] void fail(const std::string& why) {
  say("omniorb-server: " + why);
  std::_Exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int at = 1; at < argc; at += 2) {
    const std::string option = argv[at];
    if (at + 1 == argc) fail(option + " without a value");
    const char* value = argv[at + 1];
    if (option == "--name") options.name = value;
    else if (option == "--key") options.key = value;
    else if (option == "--port") options.port = value;
    else if (option == "--ior") options.ior = value;
    else if (option == "--group") options.group = value;
    else if (option == "--away") options.away = value;
    else if (option == "--share") options.share = std::stod(value);
    else if (option == "--spin") options.spin = microseconds(std::stol(value));
    else if (option == "--sleep") options.sleep = microseconds(std::stol(value));
    else fail("unknown option " + option);
  }
  return options;
}

// The file is the balancer's, which may start later.
void find_group(CORBA::ORB_ptr orb, std::string reference, Shed* shed) {
  if (reference.rfind("file:", 0) == 0) {
    const std::string path = reference.substr(5);
    for (reference.clear(); reference.empty(); std::this_thread::sleep_for(std::chrono::milliseconds(10)))
      std::ifstream(path) >> reference;
  }
  CORBA::Object_var group = orb->string_to_object(reference.c_str());
  shed->group(group);
  say("group known");
}

// Signals are waited for by a thread, where locks may be taken.
void obey(sigset_t signals, Shed* shed, double share) {
  for (int signal; sigwait(&signals, &signal) == 0;) {
    if (signal == SIGUSR1 && share > 0) shed->alert(share);
    else if (signal == SIGUSR1) shed->enable_alert();
    else shed->disable_alert();
    say((signal == SIGUSR1 ? "alert, sent away " : "no alert, sent away ") + std::to_string(shed->sent()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  sigaddset(&signals, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  try {
    // The endpoint has to be known before the ORB is: the port is looked for among all arguments.
    std::string endpoint = "giop:tcp:127.0.0.1:";
    for (int at = 1; at + 1 < argc; ++at)
      if (std::strcmp(argv[at], "--port") == 0) endpoint += argv[at + 1];
    const char* orb_options[][2] = {{"endPoint", endpoint.c_str()}, {nullptr, nullptr}};
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv, "omniORB4", orb_options);
    const Options options = parse(argc, argv);

    // This POA's object keys are the ids of its objects and nothing else.
    CORBA::Object_var found = orb->resolve_initial_references("omniINSPOA");
    PortableServer::POA_var poa = PortableServer::POA::_narrow(found);
    PortableServer::ObjectId_var id = PortableServer::string_to_ObjectId(options.key.c_str());
    Latency latency(options, orb);
    poa->activate_object_with_id(id, &latency);

    std::unique_ptr<Shed> shed;
    if (!options.group.empty()) {
      shed.reset(new Shed);
      shed->guard(options.key);
      PortableServer::ObjectId_var alert = PortableServer::string_to_ObjectId("Alert");
      poa->activate_object_with_id(alert, shed.get());
      std::thread(find_group, orb.in(), options.group, shed.get()).detach();
      std::thread(obey, signals, shed.get(), options.share).detach();
    }

    PortableServer::POAManager_var manager = poa->the_POAManager();
    manager->activate();
    CORBA::Object_var self = poa->id_to_reference(id);
    CORBA::String_var ior = orb->object_to_string(self);
    if (!options.ior.empty()) {
      // All at once: a reader must not see the half of it.
      const std::string half = options.ior + ".new";
      std::ofstream(half) << ior << "\n";
      if (std::rename(half.c_str(), options.ior.c_str()) != 0) fail("cannot write " + options.ior);
    }
    say(std::string("ready ") + ior.in());
    orb->run();
  } catch (const CORBA::Exception& exception) {
    fail(std::string("exception ") + exception._name());
  }
}
