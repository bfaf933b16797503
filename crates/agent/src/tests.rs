use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn nothing_to_read() -> SensorSet {
    SensorSet::open(
        SensorPaths { proc: "/no/such/place".into(), cgroup: None, port: None },
        Duration::from_secs(1),
    )
}

/// Returns the number of reports in ten seconds while `tell` is called every ten milliseconds with the time.
async fn count_ticks(send_report: impl Fn(&ValueReporter, u64)) -> u64 {
    let shared = Arc::new(AgentState::new(None, None, Vec::new(), &[]));
    let reporter = ValueReporter { shared: shared.clone(), subject_index: 0 };
    let (sender, receiver) = watch::channel(0);
    let tick_task = tokio::spawn(async move {
        run_ticks(&shared, nothing_to_read(), Duration::from_secs(1), &sender).await;
    });
    for ms in (0..10_000).step_by(10) {
        send_report(&reporter, ms);
        sleep(Duration::from_millis(10)).await; // sleeps: time is virtual
    }
    tick_task.abort();
    *receiver.borrow()
}

#[tokio::test(start_paused = true)]
async fn an_interval_is_kept_when_nothing_matters() {
    let tick_count = count_ticks(|_, _| ()).await;
    assert!((9..=12).contains(&tick_count), "{tick_count}");
}

#[tokio::test(start_paused = true)]
async fn what_matters_is_told_at_once_and_no_more_than_ten_times_a_second() {
    let step_ticks =
        count_ticks(|reporter, ms| reporter.report("queue", if ms < 5500 { 10.0 } else { 90.0 }).unwrap())
            .await;
    assert!((10..=14).contains(&step_ticks), "{step_ticks}");
    // The value grows by 63 % every 100 ms.
    let growth_ticks =
        count_ticks(|reporter, ms| reporter.report("queue", 1.05_f64.powf(ms as f64 / 10.0)).unwrap()).await;
    assert!((50..=101).contains(&growth_ticks), "{growth_ticks}");
}

#[tokio::test]
async fn whom_it_is_about_has_to_be_known() {
    let config =
        AgentConfig { report_to: vec!["http://127.0.0.1:1".parse().unwrap()], ..AgentConfig::default() };
    assert!(matches!(Agent::open(config).await, Err(AgentError::Member)));
}

#[tokio::test]
async fn it_ends_when_it_is_told_to() {
    let silent_balancer = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = AgentConfig {
        member: Some("a:80".into()),
        report_to: vec![format!("http://{}", silent_balancer.local_addr().unwrap()).parse().unwrap()],
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..AgentConfig::default()
    };
    let agent = Agent::open(config).await.unwrap();
    assert!(agent.addr().is_some());
    static STOP: AtomicBool = AtomicBool::new(false);
    let stop = async move {
        // Wait until a report is in progress.
        drop(silent_balancer.accept().await.unwrap());
        STOP.store(true, Ordering::Relaxed);
    };
    tokio::time::timeout(Duration::from_secs(60), agent.run(stop)).await.unwrap();
    assert!(STOP.load(Ordering::Relaxed));
}
