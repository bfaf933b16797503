// Shedding for servers on omniORB: clients of an overloaded server are sent back to their group, to be bound anew.
//
// A server under alert answers requests for its guarded objects with LOCATION_FORWARD to the group's reference. The
// client's ORB goes there by itself with the same call, and the balancer forwards it to another member: the
// application sees neither an exception nor a lost call. Nothing in the servants changes; an interceptor does it.
//
//     Shed shed;                      // before the POA manager is activated
//     shed.guard("Latency");          // object keys that are members of the group
//     shed.group(group);              // now or later: the server may start before the balancer does
//     shed.enable_alert();            // all go, for as long as the alert lasts
//     shed.alert(0.3);                // or: three in ten of the clients that are here go, once
//     shed.disable_alert();
//
// Shed is a servant of CosLoadBalancing::LoadAlert, too: activate it, and a load balancer can call it.
#ifndef PLIMSOLL_SHED_H
#define PLIMSOLL_SHED_H

#include <string>

#include "alert.hh"

class Shed : public POA_CosLoadBalancing::LoadAlert {
public:
  // One for a process, made after ORB_init and alive until the ORB is destroyed.
  Shed();

  // Where clients are sent; nobody is before this is known. The reference must be typed: one without a type (made from
  // a corbaloc, say) sends some Java ORBs round in circles. Throws std::invalid_argument if it is nil.
  void group(CORBA::Object_ptr group);

  // Sheds the clients of the object with this key. Other objects, this alert itself for one, always answer.
  void guard(const std::string& key);

  // Each connection that is here now goes with this probability, 0 to 1: asked once, at its next request. Those that
  // come back, or come new, stay: the balancer bound them here knowing of the alert.
  void alert(double share);

  // Every request is sent back, from whatever connection, until the alert is over.
  void enable_alert() override;
  void disable_alert() override;

  // Requests sent away so far.
  unsigned long sent() const;
};

#endif
