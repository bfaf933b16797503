// A client of a CosLoadBalancing::LoadManager on omniORB, and a load monitor and alert for it.
//
//     omniorb-manager MANAGER COMMAND... [-ORB...]
//
// MANAGER and other references are an IOR, a corbaloc or file:PATH. Commands, one after the other:
//
//     push LOCATION ID=VALUE[,ID=VALUE]   push_loads; a location is ID or ID.KIND, with / between parts
//     loads LOCATION                      get_loads
//     alert LOCATION on|off               enable_alert or disable_alert, by the manager
//     create TYPE [style=N] [strategy=NAME[:SETTING=VALUE]] [unknown=1]
//     delete N                            delete_object of the group that create gave this number
//     add GROUP LOCATION OBJECT           add_member
//     remove GROUP LOCATION               remove_member
//     locations GROUP                     locations_of_members
//     groups LOCATION                     groups_at_location: how many
//     id GROUP                            get_object_group_id, and whether the reference of that id is the same
//     member GROUP LOCATION               get_member_ref
//     defaults strategy=NAME|style=N      set_default_properties, then how many there are
//     properties GROUP                    get_properties: how many
//     dynamic GROUP                       set_properties_dynamically
//     monitor LOCATION VALUE              registers a monitor in this process that says so much of LoadAverage
//     no-monitor LOCATION                 get_load_monitor, then remove_load_monitor
//     alerted LOCATION                    registers an alert in this process
//     no-alert LOCATION                   get_load_alert, then remove_load_alert
//     serve                               says "serving" and waits for calls until it is killed
//
// Prints a line for each command, with exceptions by name; "asked" and "enable_alert" or "disable_alert" when those
// calls come in; "done" at the end.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "manager.hh"

namespace {

std::mutex printing;

void say(const std::string& line) {
  std::lock_guard<std::mutex> held(printing);
  std::cout << line << std::endl;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

CosNaming::Name name_of(const std::string& text, bool kinds) {
  CosNaming::Name name;
  for (const auto& part : split(text, '/')) {
    const CORBA::ULong last = name.length();
    name.length(last + 1);
    const size_t dot = kinds ? part.rfind('.') : std::string::npos;
    name[last].id = CORBA::string_dup(part.substr(0, dot).c_str());
    name[last].kind = CORBA::string_dup(dot == std::string::npos ? "" : part.substr(dot + 1).c_str());
  }
  return name;
}

// A location with a port (HOST:PORT) is one part without a kind.
CosNaming::Name location(const std::string& text) {
  return name_of(text, text.find(':') == std::string::npos);
}

std::string text_of(const CosNaming::Name& name) {
  std::string text;
  for (CORBA::ULong at = 0; at < name.length(); ++at) {
    if (at > 0) text += "/";
    text += name[at].id.in();
    if (*name[at].kind.in()) text += std::string(".") + name[at].kind.in();
  }
  return text;
}

CosLoadBalancing::LoadList loads_of(const std::string& text) {
  CosLoadBalancing::LoadList loads;
  for (const auto& one : split(text, ',')) {
    const CORBA::ULong last = loads.length();
    loads.length(last + 1);
    const size_t is = one.find('=');
    loads[last].id = std::atoi(one.substr(0, is).c_str());
    loads[last].value = std::atof(one.substr(is + 1).c_str());
  }
  return loads;
}

std::string text_of(const CosLoadBalancing::LoadList& loads) {
  std::ostringstream text;
  for (CORBA::ULong at = 0; at < loads.length(); ++at)
    text << (at > 0 ? "," : "") << loads[at].id << "=" << loads[at].value;
  return text.str();
}

void set(PortableGroup::Properties& all, const std::string& name, const CORBA::Any& value) {
  const CORBA::ULong last = all.length();
  all.length(last + 1);
  all[last].nam = name_of(name, false);
  all[last].val = value;
}

// style=N, strategy=NAME[:SETTING=VALUE], unknown=N
void set(PortableGroup::Properties& all, const std::string& word) {
  const size_t is = word.find('=');
  const std::string key = word.substr(0, is), value = word.substr(is + 1);
  CORBA::Any any;
  if (key == "style") {
    any <<= static_cast<CORBA::Long>(std::atoi(value.c_str()));
    set(all, "org.omg.PortableGroup.MembershipStyle", any);
  } else if (key == "strategy") {
    CosLoadBalancing::StrategyInfo info;
    const auto parts = split(value, ':');
    info.name = CORBA::string_dup(parts[0].c_str());
    for (size_t at = 1; at < parts.size(); ++at) {
      const size_t is = parts[at].find('=');
      CORBA::Any setting;
      setting <<= static_cast<CORBA::Float>(std::atof(parts[at].substr(is + 1).c_str()));
      set(info.props, "org.omg.CosLoadBalancing.Strategy.LeastLoaded." + parts[at].substr(0, is), setting);
    }
    any <<= info;
    set(all, "org.omg.CosLoadBalancing.StrategyInfo", any);
  } else {
    any <<= static_cast<CORBA::UShort>(1);
    set(all, "org.example.Unknown", any);
  }
}

class Monitor : public POA_CosLoadBalancing::LoadMonitor {
public:
  Monitor(const std::string& where, float load) : where_(where), load_(load) {}

  PortableGroup::Location* the_location() override { return new PortableGroup::Location(location(where_)); }

  CosLoadBalancing::LoadList* loads() override {
    say("asked");
    auto* loads = new CosLoadBalancing::LoadList;
    loads->length(1);
    (*loads)[0].id = 0;
    (*loads)[0].value = load_;
    return loads;
  }

private:
  const std::string where_;
  const float load_;
};

class Alert : public POA_CosLoadBalancing::LoadAlert {
public:
  void enable_alert() override { say("enable_alert"); }
  void disable_alert() override { say("disable_alert"); }
};

[[noreturn]] void usage(const std::string& why) {
  std::cerr << "omniorb-manager: " << why << std::endl;
  std::_Exit(2);
}

class Commands {
public:
  Commands(CORBA::ORB_ptr orb, const std::vector<std::string>& words) : orb_(orb), words_(words) {}

  void run() {
    CORBA::Object_var object = reference();
    manager_ = CosLoadBalancing::LoadManager::_narrow(object);
    if (CORBA::is_nil(manager_)) usage("not a LoadManager");
    while (at_ < words_.size()) {
      const std::string command = next();
      try {
        say(command + " " + one(command));
      } catch (const CORBA::Exception& exception) {
        say(command + " exception=" + exception._name());
      }
    }
  }

private:
  std::string next() {
    if (at_ == words_.size()) usage("a word is missing");
    return words_[at_++];
  }

  CORBA::Object_ptr reference() {
    std::string text = next();
    if (text.rfind("file:", 0) == 0) std::ifstream(text.substr(5)) >> text;
    return orb_->string_to_object(text.c_str());
  }

  std::string shown(CORBA::Object_ptr object) {
    if (CORBA::is_nil(object)) return "nil";
    CORBA::String_var text = orb_->object_to_string(object);
    return text.in();
  }

  PortableServer::POA_ptr poa() {
    if (CORBA::is_nil(poa_)) {
      CORBA::Object_var root = orb_->resolve_initial_references("RootPOA");
      poa_ = PortableServer::POA::_narrow(root);
      PortableServer::POAManager_var manager = poa_->the_POAManager();
      manager->activate();
    }
    return poa_;
  }

  std::string one(const std::string& command) {
    if (command == "push") {
      const auto where = location(next());
      manager_->push_loads(where, loads_of(next()));
      return "ok";
    }
    if (command == "loads") {
      CosLoadBalancing::LoadList_var loads = manager_->get_loads(location(next()));
      return text_of(loads.in());
    }
    if (command == "alert") {
      const auto where = location(next());
      if (next() == "on") manager_->enable_alert(where);
      else manager_->disable_alert(where);
      return "ok";
    }
    if (command == "create") {
      const std::string type = next();
      PortableGroup::Criteria criteria;
      while (at_ < words_.size() && words_[at_].find('=') != std::string::npos) set(criteria, next());
      PortableGroup::GenericFactory::FactoryCreationId_var id;
      CORBA::Object_var group = manager_->create_object(type.c_str(), criteria, id);
      CORBA::ULong number = 0;
      if (!(id.in() >>= number)) return "WRONG id";
      return "number=" + std::to_string(number) + " ior=" + shown(group);
    }
    if (command == "delete") {
      CORBA::Any id;
      id <<= static_cast<CORBA::ULong>(std::atoi(next().c_str()));
      manager_->delete_object(id);
      return "ok";
    }
    if (command == "add") {
      CORBA::Object_var group = reference();
      const auto where = location(next());
      CORBA::Object_var member = reference();
      CORBA::Object_var same = manager_->add_member(group, where, member);
      return "ior=" + shown(same);
    }
    if (command == "remove") {
      CORBA::Object_var group = reference();
      CORBA::Object_var same = manager_->remove_member(group, location(next()));
      return "ior=" + shown(same);
    }
    if (command == "locations") {
      CORBA::Object_var group = reference();
      PortableGroup::Locations_var all = manager_->locations_of_members(group);
      std::string text;
      for (CORBA::ULong at = 0; at < all->length(); ++at) text += (at > 0 ? "," : "") + text_of(all[at]);
      return "[" + text + "]";
    }
    if (command == "groups") {
      PortableGroup::ObjectGroups_var groups = manager_->groups_at_location(location(next()));
      return std::to_string(groups->length());
    }
    if (command == "id") {
      CORBA::Object_var group = reference();
      const CORBA::ULongLong id = manager_->get_object_group_id(group);
      CORBA::Object_var by_id = manager_->get_object_group_ref_from_id(id);
      CORBA::Object_var by_ref = manager_->get_object_group_ref(group);
      return std::to_string(id) + (shown(by_id) == shown(by_ref) ? " same" : " other");
    }
    if (command == "member") {
      CORBA::Object_var group = reference();
      CORBA::Object_var member = manager_->get_member_ref(group, location(next()));
      return "ior=" + shown(member);
    }
    if (command == "defaults") {
      PortableGroup::Properties properties;
      set(properties, next());
      manager_->set_default_properties(properties);
      PortableGroup::Properties_var now = manager_->get_default_properties();
      return std::to_string(now->length());
    }
    if (command == "properties") {
      CORBA::Object_var group = reference();
      PortableGroup::Properties_var all = manager_->get_properties(group);
      return std::to_string(all->length());
    }
    if (command == "dynamic") {
      CORBA::Object_var group = reference();
      manager_->set_properties_dynamically(group, PortableGroup::Properties());
      return "ok";
    }
    if (command == "monitor") {
      const std::string where = next();
      auto* monitor = new Monitor(where, std::atof(next().c_str()));
      PortableServer::ObjectId_var id = poa()->activate_object(monitor);
      CosLoadBalancing::LoadMonitor_var object = monitor->_this();
      manager_->register_load_monitor(location(where), object);
      return "ok";
    }
    if (command == "no-monitor") {
      const auto where = location(next());
      CosLoadBalancing::LoadMonitor_var monitor = manager_->get_load_monitor(where);
      manager_->remove_load_monitor(where);
      return CORBA::is_nil(monitor) ? "nil" : "ok";
    }
    if (command == "alerted") {
      const auto where = location(next());
      auto* alert = new Alert;
      PortableServer::ObjectId_var id = poa()->activate_object(alert);
      CosLoadBalancing::LoadAlert_var object = alert->_this();
      manager_->register_load_alert(where, object);
      return "ok";
    }
    if (command == "no-alert") {
      const auto where = location(next());
      CosLoadBalancing::LoadAlert_var alert = manager_->get_load_alert(where);
      manager_->remove_load_alert(where);
      return CORBA::is_nil(alert) ? "nil" : "ok";
    }
    if (command == "serve") {
      say("serving");
      orb_->run();
      return "over";
    }
    usage("unknown command " + command);
  }

  CORBA::ORB_ptr orb_;
  const std::vector<std::string> words_;
  size_t at_ = 0;
  CosLoadBalancing::LoadManager_var manager_;
  PortableServer::POA_var poa_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    Commands(orb, std::vector<std::string>(argv + 1, argv + argc)).run();
    orb->destroy();
    say("done");
    return 0;
  } catch (const CORBA::Exception& exception) {
    say(std::string("exception=") + exception._name() + "\ndone");
    return 1;
  }
}
