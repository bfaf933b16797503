//! Models from the command line: the guide's example, and the errors of models.

use std::fs;

use serde_json::Value;

use crate::stage::{Folder, Run};

/// The options of plans that do not end by time: as much is simulated on a slow machine.
const AS_MUCH: [&str; 4] = ["--budget", "1h", "--events", "500000"];

/// Returns the example of the guide.
fn shop() -> String {
    let guide =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/model.md")).unwrap();
    let begin = guide.find("```\n$clients").unwrap() + 4;
    guide[begin..].split("```").next().unwrap().to_owned()
}

#[test]
fn the_guides_model_is_simulated() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop());
    let run = Run::plimsoll(&["model", "simulate", "shop.lqn", "-o", "json"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    let client = &json["findings"]["tasks"][0];
    let (rate, response) =
        (client["throughput"]["mean"].as_f64().unwrap(), client["response"]["mean"].as_f64().unwrap());
    // Little's law: ten clients think, which takes a second, or wait.
    assert!((rate * (1.0 + response) - 10.0).abs() < 0.2, "{json}");
    let table = Run::plimsoll(&["model", "simulate", "shop.lqn", "--set", "clients=30"], folder.path());
    assert!(table.out.contains("PROCESSOR") && table.out.contains("core"), "{}", table.out);
    assert!(table.err.contains("events in"), "{}", table.err);
    let csv = Run::plimsoll(&["model", "simulate", "shop.lqn", "-o", "csv"], folder.path());
    assert!(csv.out.starts_with("kind,name,metric,mean,half_width\ntask,client,throughput,"), "{}", csv.out);
}

#[test]
fn the_guides_model_is_solved_and_planned() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop());
    let json = |command: &str, more: &[&str]| -> Value {
        let arguments = [&["model", command, "shop.lqn", "-o", "json"][..], more].concat();
        let run = Run::plimsoll(&arguments, folder.path());
        assert_eq!(run.code, Some(0), "{}", run.err);
        serde_json::from_str(&run.out).unwrap()
    };
    let response = |json: &Value| json["findings"]["tasks"][0]["response"]["mean"].as_f64().unwrap();
    let simulated = response(&json("simulate", &[]));
    let solved = json("solve", &[]);
    assert_eq!(solved["convergence"]["converged"], true);
    assert!((response(&solved) / simulated - 1.0).abs() < 0.07, "{solved} {simulated}");
    // The plan ends when its precision is reached, on any machine.
    let planned = json("plan", &["--budget", "1h", "--precision", "0.02"]);
    assert!((response(&planned) / simulated - 1.0).abs() < 0.07, "{planned} {simulated}");
    let part = planned["simulated_parts"][0].as_f64().unwrap();
    assert!(part > 0.1 && part <= 1.0, "{planned}");
    let table = Run::plimsoll(&["model", "plan", "shop.lqn"], folder.path());
    assert!(table.out.contains("SOURCES") && table.out.contains("client response"), "{}", table.out);
    let csv = Run::plimsoll(&["model", "solve", "shop.lqn", "-o", "csv"], folder.path());
    assert!(csv.out.starts_with("kind,name,metric,mean,half_width\ntask,client,throughput,"), "{}", csv.out);
    assert!(csv.err.contains("converged in"), "{}", csv.err);
    let many = json("solve", &["--set", "clients=200"]);
    // The server's two threads are full, and not more than full.
    let busy = many["findings"]["tasks"][1]["busy"]["mean"].as_f64().unwrap();
    assert!(busy > 1.9 && busy <= 2.0 + 1e-9, "{many}");
    let flood = shop().replace("  t client r client -1 users z 1 m $clients\n", "").replace(
        "  s client 0 -1\n  y client get 1 -1            # one call, whose answer is waited for\n",
        "  a get 100\n",
    );
    folder.write("flood.lqn", flood);
    let run = Run::plimsoll(&["model", "solve", "flood.lqn"], folder.path());
    assert!(run.code == Some(1) && run.err.contains("more comes from outside"), "{} {:?}", run.err, run.code);
}

/// Returns the text of the guide that begins with `begins`.
fn example(begins: &str) -> String {
    let guide =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/model.md")).unwrap();
    let begin = guide.find(begins).unwrap_or_else(|| panic!("no {begins}"));
    guide[begin..].split("```").next().unwrap().to_owned()
}

#[test]
fn the_guides_model_is_fitted_to_the_guides_measurements() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop());
    folder.write("measured.csv", example("clients,client.response"));
    let fit = ["model", "fit", "shop.lqn", "--measured", "measured.csv"];
    let run = Run::plimsoll(&[&fit[..], &["-o", "json", "--write", "fitted.lqn"]].concat(), folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    // The measurements were made of a system with these demands.
    for (own, (name, truth)) in
        json["fit"]["parameters"].as_array().unwrap().iter().zip([("get.demand", 0.06), ("read.demand", 0.1)])
    {
        assert_eq!(own["name"], name);
        let value = own["value"].as_f64().unwrap();
        assert!((value / truth - 1.0).abs() < 0.04, "{json}");
        let [from, to] = [0, 1].map(|end| own["interval"][end].as_f64().unwrap());
        assert!(from < value && value < to && to - from < 0.3 * truth, "{json}");
    }
    assert!(json["fit"]["doubts"].as_array().unwrap().is_empty(), "{json}");
    let table = Run::plimsoll(&fit, folder.path());
    assert!(table.out.contains("95 % FROM") && table.out.contains("get.demand"), "{}", table.out);
    let csv = Run::plimsoll(
        &["model", "solve", "fitted.lqn", "--set", "client.threads=20", "-o", "csv"],
        folder.path(),
    );
    assert_eq!(csv.code, Some(0), "{}", csv.err);
    let xml = Run::plimsoll(&[&fit[..], &["-o", "lqxo", "--method", "solve"]].concat(), folder.path());
    assert!(
        xml.out.contains("<result-task throughput=\"") && xml.out.contains("plimsoll model fit"),
        "{}",
        xml.out
    );
    // Response times of one load do not tell two demands apart.
    folder.write("one.csv", "clients,client.response\n10,0.2\n");
    let run = Run::plimsoll(
        &["model", "fit", "shop.lqn", "--measured", "one.csv", "--method", "solve"],
        folder.path(),
    );
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(
        run.err.contains("warning: the measurements hardly change with these together: ")
            && run.err.contains("get.demand")
            && run.err.contains("read.demand")
            && run.err.contains("what would tell")
            && run.out.contains("not told"),
        "{}{}",
        run.err,
        run.out
    );
    folder.write("wrong.csv", "clients,client.response\n10,soon\n");
    let run = Run::plimsoll(&["model", "fit", "shop.lqn", "--measured", "wrong.csv"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("wrong.csv:2:4: `soon` is no number"), "{}", run.err);
    let run = Run::plimsoll(&[&fit[..], &["--free", "got.demand"]].concat(), folder.path());
    assert!(
        run.code == Some(2) && run.err.contains("no entry with phases, or activity, `got`"),
        "{}",
        run.err
    );
}

#[test]
fn the_guides_balancer_is_a_model_with_failures() {
    let folder = Folder::new();
    folder.write("web.toml", example("[balancer]                  #"));
    let run = Run::plimsoll(&["model", "simulate", "web.toml", "--events", "300000"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.out.contains("FAILURES OF") && run.out.contains("people"), "{}", run.out);
    let arguments =
        ["model", "simulate", "web.toml", "--set", "people.threads=2000", "--events", "500000", "-o", "json"];
    let run = Run::plimsoll(&arguments, folder.path());
    let json: Value = serde_json::from_str(&run.out).unwrap();
    let people =
        json["findings"]["tasks"].as_array().unwrap().iter().find(|own| own["name"] == "people").unwrap();
    let (all, good) = (&people["throughput"]["mean"], &people["goodput"]["mean"]);
    // Six cores serve 600 a second.
    assert!(good.as_f64().unwrap() < 650.0 && all.as_f64().unwrap() > good.as_f64().unwrap(), "{json}");
    let run = Run::plimsoll(&["model", "solve", "web.toml"], folder.path());
    assert!(run.code == Some(0), "{}", run.err);
    assert!(
        run.err.contains("warning: solved as if it were not there: the limit of the queue of `one`"),
        "{}",
        run.err
    );
    let run = Run::plimsoll(&["model", "plan", "web.toml", "--budget", "20ms"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let run = Run::plimsoll(&["model", "convert", "web.toml", "-o", "lqn"], folder.path());
    assert!(
        run.out.contains("#pragma call.web.1.web_choice=timeout(1) retries(1) backoff(0.01)\n"),
        "{}",
        run.out
    );
    folder.write("web.lqn", &run.out);
    let [toml, lqn] = ["web.toml", "web.lqn"].map(|file| {
        Run::plimsoll(&["model", "simulate", file, "--events", "100000", "-o", "csv"], folder.path()).out
    });
    assert!(toml == lqn && toml.contains("task,people,goodput,"), "{toml}{lqn}");
    folder.write("wrong.toml", "[balancer]\nworkers = 2\n[[group]]\nname = \"web\"\nmember = 2\n");
    let run = Run::plimsoll(&["model", "solve", "wrong.toml"], folder.path());
    assert!(run.code == Some(2) && run.err.starts_with("error: wrong.toml:5:10: "), "{}", run.err);
}

#[test]
fn what_is_wrong_with_a_model_is_said_with_its_place() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop().replace("y client get", "y client got"));
    let run = Run::plimsoll(&["model", "simulate", "shop.lqn"], folder.path());
    assert_eq!(run.code, Some(2));
    assert!(run.err.starts_with("error: shop.lqn:14:12: no entry `got`"), "{}", run.err);
    let run = Run::plimsoll(&["model", "simulate", "no-such.lqn"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("cannot read no-such.lqn"), "{}", run.err);
    let run = Run::plimsoll(&["status", "-o", "csv"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("table and json only"), "{}", run.err);
}

/// Returns the first row after a header that begins with `begins`.
fn row<'o>(out: &'o str, begins: &str) -> &'o str {
    out.lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("no {begins} in {out}"))
}

#[test]
fn results_are_written_for_other_tools_and_models_from_format_to_format() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop());
    let results = Run::plimsoll(&["model", "simulate", "shop.lqn", "-o", "lqxo"], folder.path());
    assert_eq!(results.code, Some(0), "{}", results.err);
    for part in [
        "<lqn-model>",
        "<result-task throughput=\"",
        "<result-conf-95 ",
        "<result-activity service-time=\"",
        "valid=\"true\"",
    ] {
        assert!(results.out.contains(part), "{part}: {}", results.out);
    }
    // The output is a model, too, and measurements to compare with.
    folder.write("shop.lqxo", results.out);
    let args = ["model", "compare", "shop.lqn", "--measured", "shop.lqxo", "-o", "json", "--seed", "2"];
    let run = Run::plimsoll(&[&args[..], &AS_MUCH].concat(), folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["against"], "measured");
    let row = &json["rows"][0];
    assert!(["plan", "simulate", "solve"].iter().all(|way| row[way].is_number()), "{row}");
    let error = &json["errors"][0];
    assert!(error["worst"].as_f64().unwrap() < 0.05 && error["count"].as_u64().unwrap() >= 3, "{json}");
    folder.write("wrong.csv", "kind,name,metric,mean\ntask,client,response,soon\n");
    let run = Run::plimsoll(&["model", "compare", "shop.lqn", "--measured", "wrong.csv"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("wrong.csv:2:22: `soon` is no number"), "{}", run.err);
    let text = Run::plimsoll(&["model", "convert", "shop.lqxo", "-o", "lqn"], folder.path());
    assert_eq!(text.code, Some(0), "{}", text.err);
    folder.write("again.lqn", &text.out);
    let once = Run::plimsoll(&["model", "convert", "shop.lqn"], folder.path());
    let again = Run::plimsoll(&["model", "convert", "again.lqn", "-o", "lqnx"], folder.path());
    assert!(
        once.out == again.out && once.out.contains("<processor name=\"core\""),
        "{}{}",
        once.out,
        again.out
    );
    let run = Run::plimsoll(&["model", "convert", "shop.lqn", "-o", "svg"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("--output lqnx, lqn only"), "{}", run.err);
}

#[test]
fn a_configuration_becomes_a_model_with_its_policy() {
    let folder = Folder::new();
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n\
                  [[group]]\nname = \"web\"\nstrategy = \"round_robin\"\nmax_connections = 5\n\
                  members = [\"127.0.0.1:1\", { address = \"127.0.0.1:2\", capacity = 3 }]\n";
    folder.write("plimsoll.toml", config);
    let run = Run::plimsoll(&["model", "from-config"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(
        run.out.contains("#pragma route.web=round_robin\n") && run.out.contains("R 3   # 127.0.0.1:2"),
        "{}",
        run.out
    );
    folder.write("web.lqn", &run.out);
    let toml = Run::plimsoll(&["model", "from-config", "-o", "toml"], folder.path());
    assert!(
        toml.out.contains("policy = \"round_robin\"\n") && toml.out.contains("threads = 5\n"),
        "{}",
        toml.out
    );
    folder.write("web.toml", &toml.out);
    let run = Run::plimsoll(&["model", "solve", "web.toml", "-o", "csv"], folder.path());
    assert!(
        run.code == Some(0) && run.out.contains("task,web_clients,throughput,"),
        "{}{}",
        run.out,
        run.err
    );
    let run =
        Run::plimsoll(&["model", "simulate", "web.lqn", "-o", "csv", "--events", "50000"], folder.path());
    let rate = |entry: &str| -> f64 {
        let row = row(&run.out, &format!("entry,{entry},throughput"));
        row.split(',').nth(3).unwrap().parse().unwrap()
    };
    // The members take turns, whatever their capacities.
    assert!((rate("web_1") / rate("web_2") - 1.0).abs() < 0.01, "{}", run.out);
    // The warnings name where the model differs from the balancer.
    let more = config.replace("\"round_robin\"", "{ least_request = { choices = 3 } }").replace(
        "group = \"web\"\n",
        "group = \"front\"\nprotocol = \"tcp\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"xds\"\ngroup = \"front\"\ngroups = \
         [\"web\"]\n",
    );
    let more = more.replace(
        "3 }]",
        "3 }, \"127.0.0.1:3\"]\n\
         [[group]]\nname = \"front\"\nstrategy = \"load_average\"\nmembers = [\"127.0.0.1:4\"]",
    );
    folder.write("plimsoll.toml", more);
    let run = Run::plimsoll(&["model", "from-config"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    for note in [
        "group web: least_request draws 3 members, the model's power_of_two draws 2\n",
        "group web: 1024 requests wait for room at the balancer, each for at most 1s; ",
        "group front: clients of the xds listener at 127.0.0.1:0 go to members by themselves; ",
        "group front: load_average is taken for random, of which nothing is shed\n",
        "group front: clients of the listener at 127.0.0.1:0 keep their member; ",
    ] {
        assert!(run.err.contains(note), "{note}: {}", run.err);
    }
    assert!(run.out.contains("#pragma route.web_choice=power_of_two\n"), "{}", run.out);
    folder.write("plimsoll.toml", config.replace("group = \"web\"", "group = \"wob\""));
    let run = Run::plimsoll(&["model", "from-config"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("wob"), "{}", run.err);
}

#[test]
fn a_sweep_has_a_row_for_each_point() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop());
    let sweep = |more: &[&str]| {
        let args = [&["model", "sweep", "shop.lqn", "--events", "100000"], more].concat();
        Run::plimsoll(&args, folder.path())
    };
    let run = sweep(&["--set", "clients=5..25:10", "--set", "core.cores=1,2", "-o", "csv"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let head: Vec<&str> = run.out.lines().next().unwrap().split(',').collect();
    let place = |name: &str| {
        head.iter().position(|own| *own == name).unwrap_or_else(|| panic!("no {name} in {head:?}"))
    };
    let rows: Vec<Vec<f64>> = run
        .out
        .lines()
        .skip(1)
        .map(|row| row.split(',').map(|cell| cell.parse().unwrap()).collect())
        .collect();
    let points: Vec<(f64, f64)> =
        rows.iter().map(|row| (row[place("clients")], row[place("core.cores")])).collect();
    assert_eq!(points, [(5.0, 1.0), (5.0, 2.0), (15.0, 1.0), (15.0, 2.0), (25.0, 1.0), (25.0, 2.0)]);
    let response: Vec<f64> = rows.iter().map(|row| row[place("task.client.response")]).collect();
    assert!(
        response[0] < response[2] && response[2] < response[4] && response[5] < response[4],
        "{response:?}"
    );
    let run = sweep(&["--set", "client.threads=5..25:10"]);
    assert!(row(&run.out, "client.threads").contains("client.p95  BUSIEST"), "{}", run.out);
    let run = sweep(&["--set", "clients=1,2", "-o", "svg", "--metric", "throughput"]);
    assert!(run.out.starts_with("<svg") && run.out.contains("client: 2, "), "{}", run.out);
    // The range is the model's own.
    folder.write("shop.lqn", shop().replace("$clients = 10", "$clients = [1, 4]"));
    let run = sweep(&["-o", "json"]);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["points"].as_array().unwrap().len(), 2);
    assert_eq!(json["points"][1]["values"]["clients"], 4.0);
    let run = sweep(&["--set", "clients=4"]);
    assert!(run.code == Some(2) && run.err.contains("nothing changes"), "{}", run.err);
    let run = sweep(&["--set", "colour=1..3"]);
    assert!(run.code == Some(2) && run.err.contains("no parameter `$colour`"), "{}", run.err);
    let run = sweep(&["--set", "get.cores=1..3"]);
    assert!(
        run.code == Some(2) && run.err.contains("no processor `get`; there are users, core, disk"),
        "{}",
        run.err
    );
}

#[test]
fn a_long_sweep_is_solved_and_corrected_by_few_simulations() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop());
    let args = ["model", "sweep", "shop.lqn", "--set", "clients=1..200", "-o", "json"];
    let run = Run::plimsoll(&[&args[..], &AS_MUCH].concat(), folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("; clients = 200, which corrects the formulas"), "{}", run.err);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    let points = json["points"].as_array().unwrap();
    assert_eq!(
        (points.len(), &json["method"], &json["anchors"][0]["clients"]),
        (200, &"plan".into(), &1.0.into())
    );
    let response = |lines: &Value| {
        let own = |line: &&Value| line["name"] == "client" && line["metric"] == "response";
        let line = lines.as_array().unwrap().iter().find(own).unwrap();
        line["value"]["mean"].as_f64().unwrap()
    };
    let args =
        ["model", "sweep", "shop.lqn", "--set", "clients=10,30,60", "--method", "simulate", "-o", "json"];
    let run = Run::plimsoll(&args, folder.path());
    let played: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((&played["method"], &played["anchors"]), (&"simulate".into(), &serde_json::json!([])));
    for (own, clients) in played["points"].as_array().unwrap().iter().zip([10, 30, 60]) {
        let (found, truth) = (response(&points[clients - 1]["lines"]), response(&own["lines"]));
        assert!((found / truth - 1.0).abs() < 0.06, "{clients}: {found} {truth}");
    }
    // Formulas have no percentiles: each point is simulated.
    let run = Run::plimsoll(
        &[
            "model",
            "sweep",
            "shop.lqn",
            "--set",
            "clients=1..24",
            "--metric",
            "p95",
            "-o",
            "svg",
            "--budget",
            "1ms",
        ],
        folder.path(),
    );
    assert!(run.code == Some(0) && run.out.contains("client: 24, "), "{}{}", run.err, run.out);
    // Values that formulas leave out are not taken from them.
    folder.write("web.toml", example("[balancer]                  #"));
    let args = ["model", "sweep", "web.toml", "--set", "one.queue=1..24", "--budget", "1ms", "-o", "json"];
    let run = Run::plimsoll(&args, folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((&json["anchors"], json["points"].as_array().unwrap().len()), (&serde_json::json!([]), 24));
}

#[test]
fn bottleneck_capacity_and_picture_of_the_guides_model() {
    let folder = Folder::new();
    // One thread waits for a disk half of the time: threads are the bottleneck.
    folder
        .write("shop.lqn", shop().replace("core m 2", "core m 1").replace("$clients = 10", "$clients = 30"));
    let args = ["model", "bottleneck", "shop.lqn", "-o", "json"];
    let run = Run::plimsoll(&[&args[..], &AS_MUCH].concat(), folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(
        (&json["bottleneck"]["kind"], &json["bottleneck"]["names"][0]),
        (&"software".into(), &"server".into())
    );
    assert_eq!(json["method"], "plan");
    let best = json["remedies"].as_array().unwrap();
    assert!(best.len() >= 4 && best[0]["response_change"].as_f64().unwrap() < -0.2, "{json}");
    let run = Run::plimsoll(&["model", "bottleneck", "shop.lqn"], folder.path());
    assert!(
        run.out.starts_with("Software bottleneck: server, ") && run.out.contains("threads of server"),
        "{}",
        run.out
    );
    folder.write("shop.lqn", shop());
    let args = ["model", "capacity", "shop.lqn", "--goal", "response<0.5", "--load", "clients", "-o", "json"];
    let run = Run::plimsoll(&[&args[..], &AS_MUCH].concat(), folder.path());
    let plan: Value = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{}", run.err));
    let run = Run::plimsoll(&[&args[..], &["--method", "simulate"]].concat(), folder.path());
    let json: Value = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{}", run.err));
    let most = json["capacity"].as_u64().unwrap_or_else(|| json["capacity"].as_f64().unwrap() as u64);
    let response = |clients: u64| {
        let set = format!("clients={clients}");
        let run = Run::plimsoll(
            &["model", "simulate", "shop.lqn", "--set", &set, "-o", "json", "--events", "2000000"],
            folder.path(),
        );
        let json: Value = serde_json::from_str(&run.out).unwrap();
        json["findings"]["tasks"][0]["response"]["mean"].as_f64().unwrap()
    };
    assert!(response(most) < 0.5 && response(most + 1) >= 0.5, "{most}");
    // The two agree within one client: a plan is off by a percent, as a simulation is.
    assert!(
        (plan["capacity"].as_f64().unwrap() - most as f64).abs() <= 1.0 && plan["method"] == "plan",
        "{plan}"
    );
    let run = Run::plimsoll(&["model", "capacity", "shop.lqn", "--goal", "response<0.01"], folder.path());
    assert!(run.code == Some(1) && run.err.contains("no load keeps the goals"), "{}", run.err);
    let run = Run::plimsoll(&["model", "capacity", "shop.lqn", "--goal", "nobody.p95<1"], folder.path());
    assert!(
        run.code == Some(2) && run.err.contains("is about nothing: there is p95 of client"),
        "{}",
        run.err
    );
    let run = Run::plimsoll(&["model", "show", "shop.lqn"], folder.path());
    assert!(
        run.out.contains("▱ client {10} clients, think 1") && run.out.contains("→ read (0.5)"),
        "{}",
        run.out
    );
    let run = Run::plimsoll(&["model", "show", "shop.lqn", "-o", "svg"], folder.path());
    assert!(run.out.starts_with("<svg") && run.out.contains(">disk</text>"), "{}", run.out);
}
