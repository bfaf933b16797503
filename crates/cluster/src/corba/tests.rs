//! Tests of the load manager without sockets: parsing of any bytes, and the results of calls.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_wire::giop::write::{self, GiopRequestHead, MessageFormat};
use plimsoll_wire::giop::{
    ByteOrder, CdrReader, CdrWriter, CorbaAny, ExpectedResponse, GiopMessage, GiopVersion, IiopProfile, Ior,
    MessageContent, ReplyStatus, SystemException, TargetAddress,
};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::answer::{self, CallError, OperationResult, UserException};
use super::call::ManagerCall;
use super::properties::Property;
use super::servant::Servant;
use super::serve::parse_call;
use super::{ChangeRequest, GroupError, LoadManagerBackend, Location, OBJECT_KEY, ObjectGroup, StrategyInfo};

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

/// A backend without groups that records the reports.
#[derive(Default)]
struct RecordingBackend(Mutex<Vec<RecordedLoads>>, Mutex<Vec<String>>);

/// A location and loads by name.
type RecordedLoads = (String, Vec<(String, f64)>);

impl LoadManagerBackend for RecordingBackend {
    fn record_loads(&self, location: &str, values: &[(String, f64)]) {
        self.0.lock().unwrap().push((location.to_owned(), values.to_vec()));
    }

    fn alerted_locations(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn groups(&self) -> Vec<ObjectGroup> {
        Vec::new()
    }

    fn create_group(&self, _: &str, _: Option<&StrategyInfo>) -> Result<ObjectGroup, GroupError> {
        Err(GroupError::Impossible("not here".into()))
    }

    fn delete_group(&self, _: u64) -> Result<(), GroupError> {
        Err(GroupError::NoGroup)
    }

    fn add_member(&self, _: u64, _: &Location, _: &Ior) -> Result<(), GroupError> {
        Err(GroupError::NoGroup)
    }

    fn remove_member(&self, _: u64, _: &str) -> Result<(), GroupError> {
        Err(GroupError::NoGroup)
    }

    fn begin_change(&self, request: &ChangeRequest) -> Result<u64, String> {
        let ChangeRequest { from, operation, target } = request;
        let mut lines = self.1.lock().unwrap();
        if lines.len() >= 4 {
            return Err("the disk is full".into());
        }
        lines.push(format!("{from} {operation} {}", target.as_deref().unwrap_or("-")));
        Ok(lines.len() as u64)
    }

    fn end_change(&self, number: u64, _: &ChangeRequest, outcome: Result<(), &str>) {
        self.1.lock().unwrap()[number as usize - 1] += &format!(" {outcome:?}");
    }
}

fn servant_and_backend() -> (Arc<Servant>, Arc<RecordingBackend>, Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backend = Arc::new(RecordingBackend::default());
    let servant = Servant::new(
        Arc::clone(&backend) as Arc<dyn LoadManagerBackend>,
        Duration::from_secs(5),
        runtime.handle().clone(),
    );
    (servant, backend, runtime)
}

fn object() -> Ior {
    let profile = IiopProfile {
        version: GiopVersion::V1_2,
        host: "127.0.0.1".into(),
        port: 1,
        key: b"monitor".to_vec(),
        components: Vec::new(),
    };
    Ior { type_id: Vec::new(), profiles: vec![profile.to_tagged(ByteOrder::NATIVE)] }
}

/// Parses a request for an operation with these arguments.
fn read(
    format: MessageFormat,
    operation: &str,
    write_body: impl FnOnce(&mut CdrWriter<'_>),
) -> Result<ManagerCall, SystemException<'static>> {
    let mut out = Vec::new();
    let request_head = GiopRequestHead {
        id: 1,
        expected_response: ExpectedResponse::Result,
        target: TargetAddress::Key(OBJECT_KEY),
        operation: operation.as_bytes(),
        contexts: &[],
    };
    write::request(&mut out, format, &request_head, write_body);
    let MessageContent::Request(request) = GiopMessage::parse(&out).unwrap().content else {
        panic!("no request")
    };
    parse_call(&request, format.order)
}

fn forms() -> impl Iterator<Item = MessageFormat> {
    let byte_orders = [ByteOrder::Big, ByteOrder::Little];
    byte_orders
        .into_iter()
        .flat_map(|byte_order| GiopVersion::ALL.map(|version| MessageFormat { version, order: byte_order }))
}

fn name(components: &[(&str, &str)], writer: &mut CdrWriter<'_>) {
    writer.count(components.len());
    for (id, kind) in components {
        writer.string(id.as_bytes());
        writer.string(kind.as_bytes());
    }
}

#[test]
fn calls_are_read_in_every_form() {
    for format in forms() {
        let call = read(format, "push_loads", |writer| {
            name(&[("rack", ""), ("host1", "lab")], writer);
            writer.count(2);
            writer.u32(0);
            writer.f32(0.5);
            writer.u32(4);
            writer.f32(100.0);
        });
        let Ok(ManagerCall::PushLoads(location, loads)) = call else { panic!("{call:?}") };
        assert_eq!((location.text(), loads), ("rack/host1.lab", vec![(0, 0.5), (4, 100.0)]));
        let call = read(format, "register_load_monitor", |writer| {
            name(&[("host1", "")], writer);
            object().write(writer);
        });
        assert_eq!(call, Ok(ManagerCall::RegisterMonitor(Location::new("host1"), object())));
        let call = read(format, "get_object_group_ref_from_id", |writer| writer.u64(7));
        assert_eq!(call, Ok(ManagerCall::GroupById(7)));
    }
}

#[test]
fn what_is_no_argument_is_refused() {
    let format = MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Little };
    let parse_error = |operation: &str, body: &dyn Fn(&mut CdrWriter<'_>)| {
        read(format, operation, |writer| body(writer)).map_err(|exception| exception.name())
    };
    assert_eq!(parse_error("get_loads", &|writer| name(&[], writer)), Err("BAD_PARAM"));
    assert_eq!(parse_error("get_loads", &|writer| name(&[("a\n", "")], writer)), Err("BAD_PARAM"));
    assert_eq!(parse_error("get_loads", &|writer| name(&[(&"a".repeat(256), "")], writer)), Err("BAD_PARAM"));
    assert_eq!(parse_error("get_loads", &|_| ()), Err("MARSHAL"));
    let write_loads = |count: u32, value: f32| {
        move |writer: &mut CdrWriter<'_>| {
            name(&[("a", "")], writer);
            writer.u32(count);
            (0..count).for_each(|id| {
                writer.u32(id);
                writer.f32(value);
            });
        }
    };
    assert!(parse_error("push_loads", &write_loads(32, 1.0)).is_ok());
    assert_eq!(parse_error("push_loads", &write_loads(33, 1.0)), Err("BAD_PARAM"));
    assert_eq!(parse_error("push_loads", &write_loads(1, f32::NAN)), Err("BAD_PARAM"));
    let nil_reference = |writer: &mut CdrWriter<'_>| {
        name(&[("a", "")], writer);
        Ior::default().write(writer);
    };
    assert_eq!(parse_error("register_load_alert", &nil_reference), Err("BAD_PARAM"));
    assert_eq!(parse_error("set_type_properties", &|_| ()), Err("NO_IMPLEMENT"));
    assert_eq!(parse_error("no_such_thing", &|_| ()), Err("BAD_OPERATION"));
}

#[test]
fn loads_are_told_by_name() {
    let (servant, reports, _runtime) = servant_and_backend();
    let result =
        servant.execute(ManagerCall::PushLoads(Location::new("a"), vec![(1, 3.0), (0, 0.5), (77, 1.0)]));
    assert_eq!(result, Ok(OperationResult::Nothing));
    let values = [("load", 3.0), ("disk", 3.0), ("load_average", 0.5), ("load_77", 1.0)];
    let values: Vec<_> = values.map(|(name, value)| (name.to_owned(), value)).into();
    assert_eq!(*reports.0.lock().unwrap(), [("a".to_owned(), values)]);
    assert_eq!(
        servant.execute(ManagerCall::PushLoads(Location::new("a"), Vec::new())),
        Ok(OperationResult::Nothing)
    );
    assert_eq!(
        servant.execute(ManagerCall::Loads(Location::new("a"))),
        Ok(OperationResult::Loads(Vec::new()))
    );
    assert_eq!(reports.0.lock().unwrap().len(), 1, "no loads are no report");
}

#[test]
fn locations_are_bounded() {
    let (servant, ..) = servant_and_backend();
    let push = |number: usize| {
        servant.execute(ManagerCall::PushLoads(Location::new(&number.to_string()), vec![(0, 1.0)]))
    };
    assert!((0..1024).all(|number| push(number).is_ok()));
    assert_eq!(push(1024), Err(CallError::System(SystemException::NO_RESOURCES)));
    assert!(push(7).is_ok());
}

#[test]
fn defaults_are_kept_by_name() {
    let (servant, ..) = servant_and_backend();
    let style = |value: i32| {
        let name = Location::new("org.omg.PortableGroup.MembershipStyle");
        vec![Property { name, value: CorbaAny::Long(value) }]
    };
    assert_eq!(servant.execute(ManagerCall::SetDefaults(style(0))), Ok(OperationResult::Nothing));
    assert_eq!(servant.execute(ManagerCall::SetDefaults(style(0))), Ok(OperationResult::Nothing));
    assert_eq!(servant.execute(ManagerCall::Defaults), Ok(OperationResult::Properties(style(0))));
    let result = servant.execute(ManagerCall::SetDefaults(style(1)));
    assert_eq!(result, Err(UserException::CannotMeetCriteria(style(1).remove(0)).into()));
    assert_eq!(servant.execute(ManagerCall::RemoveDefaults(style(5))), Ok(OperationResult::Nothing));
    assert_eq!(servant.execute(ManagerCall::Defaults), Ok(OperationResult::Properties(Vec::new())));
}

#[test]
fn answers_say_what_they_are() {
    for format in forms() {
        let encode_reply = |outcome: Result<OperationResult, CallError>| {
            let mut out = Vec::new();
            answer::reply(&mut out, format, 9, &outcome);
            out
        };
        let bytes = encode_reply(Ok(OperationResult::Created(object(), CorbaAny::ULong(3))));
        let MessageContent::Reply(reply) = GiopMessage::parse(&bytes).unwrap().content else {
            panic!("no reply")
        };
        let mut result = reply.body_reader(format.order);
        assert_eq!((reply.id, reply.status), (9, ReplyStatus::NoException));
        assert_eq!(
            (Ior::read(&mut result), CorbaAny::read(&mut result)),
            (Ok(object()), Ok(CorbaAny::ULong(3)))
        );
        let bytes = encode_reply(Err(UserException::LocationNotFound.into()));
        let MessageContent::Reply(reply) = GiopMessage::parse(&bytes).unwrap().content else {
            panic!("no reply")
        };
        assert_eq!(reply.status, ReplyStatus::UserException);
        let id = reply.body_reader(format.order).string();
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
        let order = if little { ByteOrder::Little } else { ByteOrder::Big };
        let _ = ManagerCall::parse(OPERATIONS[operation].as_bytes(), &mut CdrReader::new(&body, order));
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
        let mut writer = CdrWriter::new(&mut body, ByteOrder::Little);
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
        CorbaAny::Text(b"LeastLoaded".to_vec()).write(&mut writer);
        object().write(&mut writer);
        body.truncate(end.max(1));
        let length = body.len();
        body[at % length] = byte;
        let _ = ManagerCall::parse(operation.as_bytes(), &mut CdrReader::new(&body, ByteOrder::Little));
    }
}

#[test]
fn what_changes_something_is_written_down() {
    let (servant, backend, _runtime) = servant_and_backend();
    let from = ([10, 0, 0, 9], 4711).into();
    let location = || Location::new("host1");
    let no_alert = Err(CallError::User(UserException::LoadAlertNotFound));
    assert_eq!(servant.perform_logged(from, ManagerCall::EnableAlert(location())), no_alert);
    assert_eq!(
        servant.perform_logged(from, ManagerCall::SetDefaults(Vec::new())),
        Ok(OperationResult::Nothing)
    );
    // Load reports are frequent, and queries change nothing.
    assert_eq!(
        servant.perform_logged(from, ManagerCall::PushLoads(location(), vec![(0, 1.0)])),
        Ok(OperationResult::Nothing)
    );
    assert!(servant.perform_logged(from, ManagerCall::Loads(location())).is_ok());
    assert!(servant.perform_logged(from, ManagerCall::Create("IDL:x:1.0".into(), Vec::new())).is_err());
    assert!(servant.perform_logged(from, ManagerCall::Delete(CorbaAny::ULong(7))).is_err());
    let lines = [
        "10.0.0.9:4711 enable_alert host1 Err(\"LoadAlertNotFound\")",
        "10.0.0.9:4711 set_default_properties - Ok(())",
        "10.0.0.9:4711 create_object IDL:x:1.0 Err(\"ObjectNotCreated\")",
        "10.0.0.9:4711 delete_object 7 Err(\"ObjectNotFound\")",
    ];
    assert_eq!(*backend.1.lock().unwrap(), lines);
    // A change that cannot be recorded is not made.
    let result = servant.perform_logged(from, ManagerCall::RemoveDefaults(Vec::new()));
    assert_eq!(result, Err(CallError::System(SystemException::NO_RESOURCES)));
}
