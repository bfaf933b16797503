//! Tests of the load manager without sockets: parsing of any bytes, and the results of calls.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_wire::giop::write::{self, Form, Head};
use plimsoll_wire::giop::{
    Any, Content, IiopProfile, Ior, Message, Order, Reader, Status, SystemException, Target, Version, Wanted,
    Writer,
};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::answer::{self, Answer, Fault, Raised};
use super::call::Call;
use super::properties::Property;
use super::servant::Servant;
use super::serve::asked;
use super::{Deed, Desk, KEY, Location, ObjectGroup, Refusal, StrategyInfo};

const OPERATIONS: [&str; 27] = [
    "_is_a",
    "_non_existent",
    "push_loads",
    "get_loads",
    "enable_alert",
    "disable_alert",
    "register_load_alert",
    "get_load_alert",
    "remove_load_alert",
    "register_load_monitor",
    "get_load_monitor",
    "remove_load_monitor",
    "set_default_properties",
    "get_default_properties",
    "remove_default_properties",
    "get_properties",
    "add_member",
    "remove_member",
    "locations_of_members",
    "groups_at_location",
    "get_object_group_id",
    "get_object_group_ref",
    "get_object_group_ref_from_id",
    "get_member_ref",
    "create_object",
    "delete_object",
    "create_member",
];

/// A desk without groups that records the reports.
#[derive(Default)]
struct Reports(Mutex<Vec<Told>>, Mutex<Vec<String>>);

/// A location and loads by name.
type Told = (String, Vec<(String, f64)>);

impl Desk for Reports {
    fn report(&self, location: &str, values: &[(String, f64)]) {
        self.0.lock().unwrap().push((location.to_owned(), values.to_vec()));
    }

    fn alerted(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn groups(&self) -> Vec<ObjectGroup> {
        Vec::new()
    }

    fn create(&self, _: &str, _: Option<&StrategyInfo>) -> Result<ObjectGroup, Refusal> {
        Err(Refusal::Impossible("not here".into()))
    }

    fn delete(&self, _: u64) -> Result<(), Refusal> {
        Err(Refusal::NoGroup)
    }

    fn add(&self, _: u64, _: &Location, _: &Ior) -> Result<(), Refusal> {
        Err(Refusal::NoGroup)
    }

    fn remove(&self, _: u64, _: &str) -> Result<(), Refusal> {
        Err(Refusal::NoGroup)
    }

    fn begin(&self, deed: &Deed) -> Result<u64, String> {
        let Deed { from, operation, target } = deed;
        let mut lines = self.1.lock().unwrap();
        if lines.len() >= 4 {
            return Err("the disk is full".into());
        }
        lines.push(format!("{from} {operation} {}", target.as_deref().unwrap_or("-")));
        Ok(lines.len() as u64)
    }

    fn end(&self, number: u64, _: &Deed, outcome: Result<(), &str>) {
        self.1.lock().unwrap()[number as usize - 1] += &format!(" {outcome:?}");
    }
}

fn desk() -> (Arc<Servant>, Arc<Reports>, Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let desk = Arc::new(Reports::default());
    let servant =
        Servant::new(Arc::clone(&desk) as Arc<dyn Desk>, Duration::from_secs(5), runtime.handle().clone());
    (servant, desk, runtime)
}

fn object() -> Ior {
    let profile = IiopProfile {
        version: Version::V1_2,
        host: "127.0.0.1".into(),
        port: 1,
        key: b"monitor".to_vec(),
        components: Vec::new(),
    };
    Ior { type_id: Vec::new(), profiles: vec![profile.profile(Order::NATIVE)] }
}

/// Parses a request for an operation with these arguments.
fn read(
    form: Form,
    operation: &str,
    body: impl FnOnce(&mut Writer<'_>),
) -> Result<Call, SystemException<'static>> {
    let mut out = Vec::new();
    let head = Head {
        id: 1,
        wanted: Wanted::Result,
        target: Target::Key(KEY),
        operation: operation.as_bytes(),
        contexts: &[],
    };
    write::request(&mut out, form, &head, body);
    let Content::Request(request) = Message::parse(&out).unwrap().content else { panic!("no request") };
    asked(&request, form.order)
}

fn forms() -> impl Iterator<Item = Form> {
    let orders = [Order::Big, Order::Little];
    orders.into_iter().flat_map(|order| Version::ALL.map(|version| Form { version, order }))
}

fn name(parts: &[(&str, &str)], writer: &mut Writer<'_>) {
    writer.count(parts.len());
    for (id, kind) in parts {
        writer.string(id.as_bytes());
        writer.string(kind.as_bytes());
    }
}

#[test]
fn calls_are_read_in_every_form() {
    for form in forms() {
        let call = read(form, "push_loads", |writer| {
            name(&[("rack", ""), ("host1", "lab")], writer);
            writer.count(2);
            writer.u32(0);
            writer.f32(0.5);
            writer.u32(4);
            writer.f32(100.0);
        });
        let Ok(Call::PushLoads(location, loads)) = call else { panic!("{call:?}") };
        assert_eq!((location.text(), loads), ("rack/host1.lab", vec![(0, 0.5), (4, 100.0)]));
        let call = read(form, "register_load_monitor", |writer| {
            name(&[("host1", "")], writer);
            object().write(writer);
        });
        assert_eq!(call, Ok(Call::RegisterMonitor(Location::new("host1"), object())));
        let call = read(form, "get_object_group_ref_from_id", |writer| writer.u64(7));
        assert_eq!(call, Ok(Call::GroupById(7)));
    }
}

#[test]
fn what_is_no_argument_is_refused() {
    let form = Form { version: Version::V1_2, order: Order::Little };
    let told = |operation: &str, body: &dyn Fn(&mut Writer<'_>)| {
        read(form, operation, |writer| body(writer)).map_err(|why| why.name())
    };
    assert_eq!(told("get_loads", &|writer| name(&[], writer)), Err("BAD_PARAM"));
    assert_eq!(told("get_loads", &|writer| name(&[("a\n", "")], writer)), Err("BAD_PARAM"));
    assert_eq!(told("get_loads", &|writer| name(&[(&"a".repeat(256), "")], writer)), Err("BAD_PARAM"));
    assert_eq!(told("get_loads", &|_| ()), Err("MARSHAL"));
    let loads = |count: u32, value: f32| {
        move |writer: &mut Writer<'_>| {
            name(&[("a", "")], writer);
            writer.u32(count);
            (0..count).for_each(|id| {
                writer.u32(id);
                writer.f32(value);
            });
        }
    };
    assert!(told("push_loads", &loads(32, 1.0)).is_ok());
    assert_eq!(told("push_loads", &loads(33, 1.0)), Err("BAD_PARAM"));
    assert_eq!(told("push_loads", &loads(1, f32::NAN)), Err("BAD_PARAM"));
    let nil = |writer: &mut Writer<'_>| {
        name(&[("a", "")], writer);
        Ior::default().write(writer);
    };
    assert_eq!(told("register_load_alert", &nil), Err("BAD_PARAM"));
    assert_eq!(told("set_type_properties", &|_| ()), Err("NO_IMPLEMENT"));
    assert_eq!(told("no_such_thing", &|_| ()), Err("BAD_OPERATION"));
}

#[test]
fn loads_are_told_by_name() {
    let (servant, reports, _runtime) = desk();
    let pushed = servant.answer(Call::PushLoads(Location::new("a"), vec![(1, 3.0), (0, 0.5), (77, 1.0)]));
    assert_eq!(pushed, Ok(Answer::Nothing));
    let values = [("load", 3.0), ("disk", 3.0), ("load_average", 0.5), ("load_77", 1.0)];
    let values: Vec<_> = values.map(|(name, value)| (name.to_owned(), value)).into();
    assert_eq!(*reports.0.lock().unwrap(), [("a".to_owned(), values)]);
    assert_eq!(servant.answer(Call::PushLoads(Location::new("a"), Vec::new())), Ok(Answer::Nothing));
    assert_eq!(servant.answer(Call::Loads(Location::new("a"))), Ok(Answer::Loads(Vec::new())));
    assert_eq!(reports.0.lock().unwrap().len(), 1, "no loads are no report");
}

#[test]
fn locations_are_bounded() {
    let (servant, ..) = desk();
    let push =
        |number: usize| servant.answer(Call::PushLoads(Location::new(&number.to_string()), vec![(0, 1.0)]));
    assert!((0..1024).all(|number| push(number).is_ok()));
    assert_eq!(push(1024), Err(Fault::System(SystemException::NO_RESOURCES)));
    assert!(push(7).is_ok());
}

#[test]
fn defaults_are_kept_by_name() {
    let (servant, ..) = desk();
    let style = |value: i32| {
        let name = Location::new("org.omg.PortableGroup.MembershipStyle");
        vec![Property { name, value: Any::Long(value) }]
    };
    assert_eq!(servant.answer(Call::SetDefaults(style(0))), Ok(Answer::Nothing));
    assert_eq!(servant.answer(Call::SetDefaults(style(0))), Ok(Answer::Nothing));
    assert_eq!(servant.answer(Call::Defaults), Ok(Answer::Properties(style(0))));
    let refused = servant.answer(Call::SetDefaults(style(1)));
    assert_eq!(refused, Err(Raised::CannotMeetCriteria(style(1).remove(0)).into()));
    assert_eq!(servant.answer(Call::RemoveDefaults(style(5))), Ok(Answer::Nothing));
    assert_eq!(servant.answer(Call::Defaults), Ok(Answer::Properties(Vec::new())));
}

#[test]
fn answers_say_what_they_are() {
    for form in forms() {
        let told = |outcome: Result<Answer, Fault>| {
            let mut out = Vec::new();
            answer::reply(&mut out, form, 9, &outcome);
            out
        };
        let bytes = told(Ok(Answer::Created(object(), Any::ULong(3))));
        let Content::Reply(reply) = Message::parse(&bytes).unwrap().content else { panic!("no reply") };
        let mut result = reply.result(form.order);
        assert_eq!((reply.id, reply.status), (9, Status::Done));
        assert_eq!((Ior::read(&mut result), Any::read(&mut result)), (Ok(object()), Ok(Any::ULong(3))));
        let bytes = told(Err(Raised::LocationNotFound.into()));
        let Content::Reply(reply) = Message::parse(&bytes).unwrap().content else { panic!("no reply") };
        assert_eq!(reply.status, Status::UserException);
        let id = reply.result(form.order).string();
        assert_eq!(id, Ok(b"IDL:tao.lb/CosLoadBalancing/LocationNotFound:1.0".as_slice()));
    }
}

proptest! {
    #[test]
    fn any_arguments_are_read_or_refused(
        operation in 0..OPERATIONS.len(),
        body in prop::collection::vec(any::<u8>(), 0..300),
        little: bool,
    ) {
        let order = if little { Order::Little } else { Order::Big };
        let _ = Call::read(OPERATIONS[operation].as_bytes(), &mut Reader::new(&body, order));
    }

    /// Valid beginnings of arguments reach deeper into the decoder.
    #[test]
    fn what_is_nearly_right_is_read_or_refused(
        operation in 0..OPERATIONS.len(),
        at in 0_usize..400,
        byte: u8,
        end in 0_usize..400,
    ) {
        let mut body = Vec::new();
        let mut writer = Writer::new(&mut body, Order::Little);
        let operation = OPERATIONS[operation];
        if operation.contains("group_ref") || operation.contains("member") || operation == "get_properties" {
            object().write(&mut writer);
        }
        if operation == "create_object" {
            writer.string(b"IDL:Test/Latency:1.0");
        }
        if operation.contains("object") || operation.contains("properties") {
            writer.count(1);
        }
        name(&[("host1", "lab")], &mut writer);
        Any::Text(b"LeastLoaded".to_vec()).write(&mut writer);
        object().write(&mut writer);
        body.truncate(end.max(1));
        let length = body.len();
        body[at % length] = byte;
        let _ = Call::read(operation.as_bytes(), &mut Reader::new(&body, Order::Little));
    }
}

#[test]
fn what_changes_something_is_written_down() {
    let (servant, desk, _runtime) = desk();
    let from = ([10, 0, 0, 9], 4711).into();
    let here = || Location::new("host1");
    let nobody = Err(Fault::User(Raised::LoadAlertNotFound));
    assert_eq!(servant.noted(from, Call::EnableAlert(here())), nobody);
    assert_eq!(servant.noted(from, Call::SetDefaults(Vec::new())), Ok(Answer::Nothing));
    // Load reports are frequent, and queries change nothing.
    assert_eq!(servant.noted(from, Call::PushLoads(here(), vec![(0, 1.0)])), Ok(Answer::Nothing));
    assert!(servant.noted(from, Call::Loads(here())).is_ok());
    assert!(servant.noted(from, Call::Create("IDL:x:1.0".into(), Vec::new())).is_err());
    assert!(servant.noted(from, Call::Delete(Any::ULong(7))).is_err());
    let lines = [
        "10.0.0.9:4711 enable_alert host1 Err(\"LoadAlertNotFound\")",
        "10.0.0.9:4711 set_default_properties - Ok(())",
        "10.0.0.9:4711 create_object IDL:x:1.0 Err(\"ObjectNotCreated\")",
        "10.0.0.9:4711 delete_object 7 Err(\"ObjectNotFound\")",
    ];
    assert_eq!(*desk.1.lock().unwrap(), lines);
    // A change that cannot be recorded is not made.
    let refused = servant.noted(from, Call::RemoveDefaults(Vec::new()));
    assert_eq!(refused, Err(Fault::System(SystemException::NO_RESOURCES)));
}
