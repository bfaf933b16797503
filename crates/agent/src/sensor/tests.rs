use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A temporary folder with the layout of /proc and of a control group.
struct FakeHost(PathBuf);

impl FakeHost {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("plimsoll-sensor-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn sensors(&self, cgroup: bool, port: Option<u16>) -> SensorSet {
        let paths =
            SensorPaths { proc: self.0.join("proc"), cgroup: cgroup.then(|| self.0.join("group")), port };
        SensorSet::open(paths, Duration::from_secs(1))
    }
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn value(readings: &[SensorReading], name: &str) -> Option<f64> {
    readings.iter().find(|reading| reading.name == name).map(|reading| (reading.value * 1e6).round() / 1e6)
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn host_and_group_are_read_and_the_tighter_counts() {
    let host = FakeHost::new();
    let cpus = "cpu0 0 0 0 0\ncpu1 0 0 0 0\ncpu2 0 0 0 0\ncpu3 0 0 0 0\n";
    let write_files = |busy: u32, idle: u32, used: u32, periods: u32, throttled: u32, stalled: u32| {
        host.write("proc/stat", &format!("cpu {busy} 0 0 {idle} 0 0 0 0 0 0\n{cpus}"));
        host.write("proc/loadavg", &format!("0.50 0.40 0.30 {}/90 7\n", stalled / 100_000 + 1));
        host.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 800 kB\n");
        host.write("proc/net/sockstat", "TCP: inuse 5 orphan 0 tw 2 alloc 5 mem 1\nUDP: inuse 1 mem 0\n");
        for resource in ["cpu", "io", "memory"] {
            host.write(&format!("proc/pressure/{resource}"), "some avg10=0.00 total=0\n");
        }
        host.write("group/cpu.max", "200000 100000\n");
        let text = format!("usage_usec {used}\nnr_periods {periods}\nnr_throttled {throttled}\n");
        host.write("group/cpu.stat", &text);
        host.write("group/cpu.pressure", &format!("some avg10=0.00 total={stalled}\n"));
        host.write("group/memory.current", "600\n");
        host.write("group/memory.max", "1000\n");
        host.write("group/memory.stat", "anon 5\ninactive_file 100\n");
    };
    let mut sensors = host.sensors(true, None);
    write_files(100, 100, 0, 0, 0, 0);
    let (first, unread) = sensors.read_all(at(0));
    assert_eq!(unread, []);
    assert_eq!(value(&first, "cpu"), None, "one look says nothing of what grows");
    assert_eq!((value(&first, "memory"), value(&first, "memory_host")), (Some(0.5), Some(0.2)));
    // One second later: a quarter of four processors, and 1.5 of the two in the group's quota.
    write_files(200, 400, 1_500_000, 10, 4, 300_000);
    let (second, unread) = sensors.read_all(at(1000));
    assert_eq!(unread, []);
    let names = ["cpu_host", "cpu_cgroup", "cpu", "cpu_throttled", "cpus", "cpu_pressure", "io_pressure"];
    let measured = names.map(|name| value(&second, name));
    assert_eq!(measured, [0.25, 0.75, 0.75, 0.4, 2.0, 0.3, 0.0].map(Some));
    assert_eq!((value(&second, "load_average"), value(&second, "run_queue")), (Some(0.5), Some(3.0)));
    assert_eq!((value(&second, "tcp_sockets"), value(&second, "tcp_time_wait")), (Some(5.0), Some(2.0)));
    // The counters are reset: shares must stay within 0 to 1.
    write_files(0, 0, 0, 0, 0, 0);
    let (third, _) = sensors.read_all(at(2000));
    assert!(
        third.iter().all(|reading| !reading.is_share || (0.0..=1.0).contains(&reading.value)),
        "{third:?}"
    );
}

#[test]
fn what_cannot_be_read_is_named_and_the_others_go_on() {
    let host = FakeHost::new();
    host.write("proc/loadavg", "0.50 0.40 0.30 3/90 7\n");
    host.write("proc/meminfo", "what is this\n");
    host.write("proc/net/sockstat", "TCP: inuse 5\n");
    fs::create_dir_all(host.0.join("proc/stat")).unwrap();
    let mut sensors = host.sensors(true, Some(80));
    let (readings, unread) = sensors.read_all(at(0));
    assert_eq!((value(&readings, "run_queue"), value(&readings, "tcp_sockets")), (Some(2.0), Some(5.0)));
    let mut named_sources: Vec<_> = unread
        .iter()
        .map(|unread| (unread.sensor, unread.what.strip_prefix(host.0.to_str().unwrap()).unwrap()))
        .collect();
    named_sources.sort_unstable();
    let expected = [
        ("cpu", "/group/cpu.stat"),
        ("cpu", "/proc/stat"),
        ("memory", "/group/memory.current"),
        ("memory", "/proc/meminfo"),
        ("pressure", "/proc/pressure/cpu"),
        ("pressure", "/proc/pressure/io"),
        ("pressure", "/proc/pressure/memory"),
        ("sockets", "/proc/net/tcp"),
    ];
    assert_eq!(named_sources, expected);
    let reason =
        |suffix: &str| unread.iter().find(|unread| unread.what.ends_with(suffix)).unwrap().why.clone();
    assert!(reason("meminfo").contains("not in the form"), "{}", reason("meminfo"));
    assert!(reason("tcp").contains("No such file"), "{}", reason("tcp"));
}

#[test]
fn a_group_that_goes_away_leaves_no_jump() {
    let host = FakeHost::new();
    host.write("group/cpu.pressure", "some total=1000\n");
    host.write("proc/pressure/cpu", "some total=999999999\n");
    let mut sensors = host.sensors(true, None);
    let mut pressure = |ms| value(&sensors.read_all(at(ms)).0, "cpu_pressure");
    pressure(0);
    host.write("group/cpu.pressure", "some total=101000\n");
    assert_eq!(pressure(1000), Some(0.1));
    fs::remove_file(host.0.join("group/cpu.pressure")).unwrap();
    assert_eq!(pressure(2000), None, "one look says nothing of what grows");
    host.write("proc/pressure/cpu", "some total=1000199999\n");
    assert_eq!(pressure(3000), Some(0.2));
    host.write("group/cpu.pressure", "some total=5\n");
    assert_eq!(pressure(4000), Some(0.0));
}

#[test]
fn a_port_has_its_connections_counted_once_in_a_span() {
    let host = FakeHost::new();
    let write_connections = |count: usize| {
        let line = "   1: 0100007F:0050 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0\n";
        host.write("proc/net/tcp", &format!("  sl  local_address rem_address   st\n{}", line.repeat(count)));
    };
    let mut sensors = host.sensors(false, Some(80));
    let mut count = |ms| value(&sensors.read_all(at(ms)).0, "connections");
    write_connections(2);
    assert_eq!(count(0), Some(2.0));
    write_connections(3);
    assert_eq!(count(500), Some(2.0));
    assert_eq!(count(1000), Some(3.0));
}

#[test]
fn this_machine_tells() {
    let paths = SensorPaths { proc: "/proc".into(), cgroup: None, port: None };
    let mut sensors = SensorSet::open(paths, Duration::from_secs(1));
    let (readings, unread) = sensors.read_all(at(0));
    for name in ["cpus", "run_queue", "load_average", "memory"] {
        assert!(value(&readings, name).is_some(), "{name} of {readings:?}, not read {unread:?}");
    }
}
