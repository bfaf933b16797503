// See shed.h. omniORB hands every request to the interceptor when its head has been read and its arguments have not;
// what is thrown here becomes the answer.
#include "shed.h"

#include <map>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>

#include <omniORB4/omniInterceptors.h>
#include <omniORB4/internal/giopStrand.h>
#include <omniORB4/internal/giopStream.h>
#include <omniORB4/internal/GIOP_S.h>

namespace {

// Connections that are remembered. Beyond that all are forgotten and count as new: nobody is sent away wrongly.
const size_t CONNECTIONS = 65536;

std::mutex lock;
CORBA::Object_var destination;
std::set<std::string> guarded;
bool everyone = false;
double share = 0;
unsigned long epoch = 0;
unsigned long sent_away = 0;
// The epoch in which a connection was asked last, or came.
std::map<std::string, unsigned long> asked;
std::mt19937 chance{std::random_device{}()};

bool goes(const std::string& connection) {
  auto [entry, is_new] = asked.emplace(connection, epoch);
  if (everyone) return true;
  if (is_new || entry->second == epoch) {
    if (asked.size() > CONNECTIONS) asked.clear();
    return false;
  }
  entry->second = epoch;
  return std::uniform_real_distribution<>{}(chance) < share;
}

CORBA::Boolean received(omni::omniInterceptors::serverReceiveRequest_T::info_T& info) {
  omni::GIOP_S& request = info.giop_s;
  // A oneway has no answer that could send it elsewhere: it is carried out here.
  if (!request.response_expected()) return true;
  std::string key(reinterpret_cast<const char*>(request.key()), request.keysize());
  std::unique_lock<std::mutex> held(lock);
  if (!guarded.count(key) || !goes(info.peeraddress()) || CORBA::is_nil(destination)) return true;
  CORBA::Object_var there = CORBA::Object::_duplicate(destination);
  sent_away += 1;
  held.unlock();
  throw omniORB::LOCATION_FORWARD(there._retn(), false);
}

}  // namespace

Shed::Shed() { omniORB::getInterceptors()->serverReceiveRequest.add(received); }

void Shed::group(CORBA::Object_ptr group) {
  if (CORBA::is_nil(group)) throw std::invalid_argument("the reference of the group is nil");
  std::lock_guard<std::mutex> held(lock);
  destination = CORBA::Object::_duplicate(group);
}

void Shed::guard(const std::string& key) {
  std::lock_guard<std::mutex> held(lock);
  guarded.insert(key);
}

void Shed::alert(double of_them) {
  std::lock_guard<std::mutex> held(lock);
  everyone = false;
  share = of_them;
  epoch += 1;
}

void Shed::enable_alert() {
  std::lock_guard<std::mutex> held(lock);
  everyone = true;
}

void Shed::disable_alert() {
  std::lock_guard<std::mutex> held(lock);
  everyone = false;
  share = 0;
}

unsigned long Shed::sent() const {
  std::lock_guard<std::mutex> held(lock);
  return sent_away;
}
