//! gRPC's interoperability tests: the client of grpc-go and its server, through the balancer.

use crate::stage::{Authority, Balancer, Folder, InteropServer, go_run, groups};

/// The client's cases that need no cloud (`interop-test-descriptions.md` of gRPC).
const CASES: [&str; 16] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "orca_per_rpc",
    "orca_oob",
];

#[track_caller]
fn judge(balancer: &Balancer, more: &[&str]) {
    let port = format!("-server_port={}", balancer.address().port());
    let failed = CASES.iter().filter_map(|case| {
        let name = format!("-test_case={case}");
        // The cases about load reports need a strategy of the client.
        let config =
            "-service_config_json={\"loadBalancingConfig\":[{\"test_backend_metrics_load_balancer\":{}}]}";
        let config = case.starts_with("orca").then_some(config);
        let args = [&["-server_host=127.0.0.1", &port, &name], config.as_slice(), more].concat();
        let (passed, said) = go_run("grpc-interop-client", &args);
        (!passed).then(|| format!("{case}: {said}"))
    });
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The settings of the interop server's group: load reports are passed to the client, which tests them.
const GROUP: &str = "protocol = \"h2\"\nload_report_header = \"pass\"\n";

#[test]
fn the_interop_client_passes_through() {
    let server = InteropServer::start();
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n";
    let group = groups(&[("web", &[server.address])], GROUP);
    judge(&Balancer::start(&format!("{listener}{group}")), &[]);
}

#[test]
fn a_busy_client_pings_as_it_likes() {
    // The client measures round trips: a PING with each answer, far more than an otherwise idle client may
    // send. None of its calls is lost.
    let server = InteropServer::start();
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n";
    let balancer = Balancer::start(&format!("{listener}{}", groups(&[("web", &[server.address])], GROUP)));
    let port = format!("-server_port={}", balancer.address().port());
    let soak = [
        "-server_host=127.0.0.1",
        &port,
        "-test_case=rpc_soak",
        "-soak_iterations=3000",
        "-soak_request_size=1",
        "-soak_response_size=1",
        "-soak_overall_timeout_seconds=110",
        "-soak_per_iteration_max_acceptable_latency_ms=100000",
    ];
    let (passed, said) = go_run("grpc-interop-client", &soak);
    let failed: Vec<&str> = said.lines().filter(|line| !line.contains("succeeded")).collect();
    assert!(passed, "{}", failed.join("\n"));
    assert_eq!(balancer.status()["listeners"][0]["accepted"], 1, "one connection has served all");
}

#[test]
fn the_interop_client_passes_through_by_tls() {
    let server = InteropServer::start();
    let folder = Folder::new();
    Authority::new(&folder, "ca").issue(&folder, "one", &["one.test"]);
    let ca = format!("-ca_file={}", folder.join("ca.pem").display());
    let tls = "tls = { certificates = [{ certificate = \"one.pem\", key = \"one.key\" }] }";
    let listener =
        format!("[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\ngroup = \"web\"\n{tls}\n");
    let group = groups(&[("web", &[server.address])], GROUP);
    let balancer = Balancer::start_in(folder, &format!("{listener}{group}"));
    judge(&balancer, &["-use_tls", "-use_test_ca", &ca, "-server_host_override=one.test"]);
}
