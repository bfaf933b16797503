// A client of the object in latency.idl on omniORB.
//
//     omniorb-client REFERENCE COMMAND... [--threads N] [--interval MS] [-ORB...]
//
// REFERENCE is an IOR, a corbaloc or file:PATH. Commands, one after the other with the same reference:
//
//     who               who answers
//     call N [NUMBER]   N calls of is_prime, their result checked; microseconds on average and at the 50th and 99th
//     echo N            N calls of echo with a text of each thread's own, checked
//     wide              echo_wide, checked
//     half X            half, checked
//     blob SIZE         blob with so many bytes, checked
//     note N            N oneways
//     noted [N]         how many came; waits for N, as servers may take up what comes later first
//     fail user|system  the exception that comes
//     is_a, locate      _is_a and _non_existent
//     alert on|off      enable_alert or disable_alert, of a reference to a CosLoadBalancing::LoadAlert
//     loop SECONDS      who() every --interval, a line for each call
//
// Prints one line for each command and thread, with exceptions by name: "loop" one for each call. Then "done". Exit code 1 if
// something came back wrong or an exception was not asked for (in a loop, it is), 2 for a usage error.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "alert.hh"
#include "latency.hh"

using Clock = std::chrono::steady_clock;

namespace {

std::mutex printing;
std::atomic<bool> wrong{false};
int interval_ms = 100;

void say(int thread, const std::string& line) {
  std::lock_guard<std::mutex> held(printing);
  std::cout << "thread=" << thread << " " << line << std::endl;
}

long micros_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
}

[[noreturn]] void usage(const std::string& why) {
  std::cerr << "omniorb-client: " << why << std::endl;
  std::_Exit(2);
}

// Runs `call`, which returns what there is to say.
bool attempt(int thread, const std::string& what, const std::function<std::string()>& call) {
  const auto begin = Clock::now();
  std::ostringstream line;
  bool good = false;
  try {
    const std::string said = call();
    line << what << " " << said << " us=" << micros_since(begin);
    good = true;
  } catch (const Test::Oops& oops) {
    line << what << " exception=Oops why=" << oops.why << " us=" << micros_since(begin);
  } catch (const CORBA::SystemException& e) {
    const char* const completed[] = {"YES", "NO", "MAYBE"};
    line << what << " exception=" << e._name() << " minor=0x" << std::hex << e.minor() << std::dec
         << " completed=" << completed[e.completed()] << " us=" << micros_since(begin);
  }
  say(thread, line.str());
  return good;
}

std::string check(bool right, const std::string& said) {
  if (right) return said;
  wrong = true;
  return "WRONG " + said;
}

bool prime(CORBA::ULong number) {
  for (CORBA::ULong divisor = 2; divisor < number; ++divisor)
    if (number % divisor == 0) return false;
  return number > 1;
}

std::string call(Test::Latency_ptr object, long count, CORBA::ULong fixed) {
  std::vector<long> times;
  bool right = true;
  for (long n = 1; n <= count; ++n) {
    const CORBA::ULong number = fixed ? fixed : 1 + n % 1000;
    const auto begin = Clock::now();
    const bool is_prime = object->is_prime(number);
    times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
    if (!fixed) right &= is_prime == prime(number);
  }
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (long time : times) sum += time;
  std::ostringstream said;
  said << "calls=" << count << " mean_us=" << sum / count / 1e3 << " p50_us=" << times[count / 2] / 1e3
       << " p99_us=" << times[count * 99 / 100] / 1e3;
  return check(right, said.str());
}

std::string echo(Test::Latency_ptr object, int thread, long count) {
  bool right = true;
  for (long n = 0; n < count; ++n) {
    const std::string text = "thread " + std::to_string(thread) + " call " + std::to_string(n);
    CORBA::String_var back = object->echo(text.c_str());
    right &= text == back.in();
  }
  return check(right, "echoes=" + std::to_string(count));
}

std::string wide(Test::Latency_ptr object) {
  const std::wstring text = L"\u017elu\u0165ou\u010dk\u00fd k\u016f\u0148 \u6c34";
  CORBA::WString_var back = object->echo_wide(text.c_str());
  return check(text == back.in(), "characters=" + std::to_string(text.size()));
}

std::string half(Test::Latency_ptr object, double x) {
  const double back = object->half(x);
  std::ostringstream said;
  said << "value=" << back;
  return check(back == x / 2, said.str());
}

std::string blob(Test::Latency_ptr object, CORBA::ULong size) {
  Test::Octets data;
  data.length(size);
  for (CORBA::ULong at = 0; at < size; ++at) data[at] = static_cast<CORBA::Octet>(at * 2654435761u >> 13);
  Test::Octets_var back = object->blob(data);
  const CORBA::Octet* sent = data.get_buffer();
  const bool same = back->length() == size && std::equal(sent, sent + size, back->get_buffer());
  return check(same, "bytes=" + std::to_string(back->length()));
}

std::string noted(Test::Latency_ptr object, CORBA::ULong least) {
  const auto end = Clock::now() + std::chrono::seconds(10);
  CORBA::ULong count;
  while ((count = object->noted()) < least && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return "noted=" + std::to_string(count);
}

std::string who(Test::Latency_ptr object) {
  CORBA::String_var name = object->who();
  return std::string("who=") + name.in();
}

std::string alert(CORBA::Object_ptr untyped, bool on) {
  CosLoadBalancing::LoadAlert_var member = CosLoadBalancing::LoadAlert::_unchecked_narrow(untyped);
  if (on) member->enable_alert();
  else member->disable_alert();
  return on ? "on" : "off";
}

void loop(Test::Latency_ptr object, int thread, double seconds) {
  const auto end = Clock::now() + std::chrono::microseconds(static_cast<long>(seconds * 1e6));
  do {
    attempt(thread, "loop", [&] { return who(object); });
    std::this_thread::sleep_for(std::chrono::milliseconds(interval_ms));
  } while (Clock::now() < end);
}

// The commands of one thread. False: an exception that nobody asked for.
bool run(CORBA::Object_ptr untyped, int thread, const std::vector<std::string>& words) {
  // Unchecked: narrowing a reference without a type would be a first call of its own.
  Test::Latency_var latency = Test::Latency::_unchecked_narrow(untyped);
  Test::Latency_ptr object = latency;
  bool good = true;
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string& command = words[at];
    auto value = [&] {
      if (++at == words.size()) usage(command + " without a value");
      return words[at];
    };
    auto number = [&] { return std::atol(value().c_str()); };
    auto make = [&](const std::function<std::string()>& it) { good &= attempt(thread, command, it); };
    if (command == "who") make([&] { return who(object); });
    else if (command == "call") {
      const long count = number();
      long fixed = 0;
      if (at + 1 < words.size() && std::isdigit(words[at + 1][0])) fixed = number();
      make([&] { return call(object, count, fixed); });
    } else if (command == "echo") {
      const long count = number();
      make([&] { return echo(object, thread, count); });
    } else if (command == "wide") make([&] { return wide(object); });
    else if (command == "half") {
      const double x = std::atof(value().c_str());
      make([&] { return half(object, x); });
    } else if (command == "blob") {
      const long size = number();
      make([&] { return blob(object, size); });
    } else if (command == "note") {
      const long count = number();
      make([&] {
        for (long n = 0; n < count; ++n) object->note(n);
        return "sent=" + std::to_string(count);
      });
    } else if (command == "noted") {
      const long least = at + 1 < words.size() && std::isdigit(words[at + 1][0]) ? number() : 0;
      make([&] { return noted(object, least); });
    } else if (command == "fail") {
      const bool user = value() == "user";
      attempt(thread, command, [&] { object->fail(user); return check(false, "no exception"); });
    } else if (command == "alert") {
      const bool on = value() == "on";
      make([&] { return alert(untyped, on); });
    } else if (command == "is_a") {
      make([&] { return check(untyped->_is_a("IDL:Test/Latency:1.0"), "yes"); });
    } else if (command == "locate") {
      make([&] { return check(!object->_non_existent(), "there"); });
    } else if (command == "loop") {
      loop(object, thread, std::atof(value().c_str()));
    } else usage("unknown command " + command);
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    std::vector<std::string> words(argv + 1, argv + argc);
    int threads = 1;
    for (size_t at = 0; at + 1 < words.size();) {
      int* option = words[at] == "--threads" ? &threads : words[at] == "--interval" ? &interval_ms : nullptr;
      if (option == nullptr) { ++at; continue; }
      *option = std::atoi(words[at + 1].c_str());
      words.erase(words.begin() + at, words.begin() + at + 2);
    }
    if (words.size() < 2) usage("REFERENCE COMMAND... expected");
    std::string reference = words[0];
    if (reference.rfind("file:", 0) == 0) std::ifstream(reference.substr(5)) >> reference;
    words.erase(words.begin());

    CORBA::Object_var object = orb->string_to_object(reference.c_str());
    std::atomic<bool> good{true};
    std::vector<std::thread> running;
    for (int thread = 0; thread < threads; ++thread)
      running.emplace_back([&, thread] { if (!run(object, thread, words)) good = false; });
    for (auto& one : running) one.join();
    orb->destroy();
    std::cout << "done" << std::endl;
    return good && !wrong ? 0 : 1;
  } catch (const CORBA::SystemException& exception) {
    std::cout << "exception=" << exception._name() << "\ndone" << std::endl;
    return 1;
  }
}
