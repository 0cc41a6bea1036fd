//! What `ironside` tells of controllers and namespaces by nvme-cli's commands, of a device that is attached and of a target
//! that is only named.
use ironside_tests::support::programs::{Initiator, Target};
use serde_json::{Value, json};

use super::bench::Bench;

/// The words which name a target that is not attached.
fn whom(target: &Target) -> Vec<String> {
    let port = target.port.to_string();
    ["-a", "127.0.0.1", "-s", &port, "-n", &target.nqn].map(str::to_owned).to_vec()
}

fn said(initiator: &Initiator, command: &str, whom: &[String], more: &[&str]) -> String {
    let words = [command].into_iter().chain(whom.iter().map(String::as_str)).chain(more.iter().copied());
    initiator.succeed(&words.collect::<Vec<_>>())
}

fn json_of(initiator: &Initiator, command: &str, whom: &[String], more: &[&str]) -> Value {
    let more = [more, &["-o", "json"]].concat();
    serde_json::from_str(&said(initiator, command, whom, &more)).unwrap()
}

#[test]
fn logs_and_features_are_read_of_a_device_and_of_a_target() {
    let bench = Bench::new();
    let initiator = &bench.initiator;
    let attached = bench.connect(&["--via", "nbd"]);
    let device = vec![attached["DevicePath"].as_str().unwrap().to_owned()];
    for whom in [device, whom(bench.target())] {
        let json = |command, more: &[&str]| json_of(initiator, command, &whom, more);

        let smart = json("smart-log", &[]);
        assert_eq!((&smart["avail_spare"], &smart["critical_warning"]["value"]), (&json!(100), &json!(0)));
        let text = said(initiator, "smart-log", &whom, &["-H"]);
        assert!(text.contains("available_spare                         : 100%\n"), "{text}");
        let raw = said(initiator, "get-log", &whom, &["-i", "2", "-l", "512", "-b"]);
        assert_eq!((raw.len(), raw.as_bytes()[3]), (512, 100));
        let dump = said(initiator, "get-log", &whom, &["-i", "0x2", "-l", "16", "-o", "4"]);
        assert!(dump.contains("log-id:2 namespace-id:0xffffffff\n") && dump.contains("0000: "), "{dump}");
        let odd: Vec<_> = ["get-log"].into_iter().map(str::to_owned).chain(whom.clone()).collect();
        let odd = [&odd[..], &["-i", "2", "-l", "3"].map(str::to_owned)].concat();
        assert!(initiator.fail(2, &odd).contains("no multiple of 4"));

        let access = json("ana-log", &[]);
        let group = &access["ANA DESC LIST "][0];
        assert_eq!((&access["ngrps"], &group["state"]), (&json!(1), &json!("optimized")));
        assert_eq!(group["NSIDS"], json!([{ "nsid": 1 }]));
        assert_eq!(json("ana-log", &["-g"])["ANA DESC LIST "][0]["NSIDS"], json!([]));

        let names = json("ns-descs", &[]);
        let uuid = names["ns-descs"].as_array().unwrap().iter().find_map(|name| name["uuid"].as_str());
        let uuid = uuid.unwrap();
        let text = said(initiator, "ns-descs", &whom, &[]);
        assert!(text.contains(&format!("uuid    : {uuid}\n")), "{text}");

        let cache = json("get-feature", &["-f", "6", "-H"]);
        assert_eq!(
            cache["feature: 0x06"],
            json!([{ "name": "Volatile Write Cache", "Current": "0x00000001" }])
        );
        assert_eq!(cache["Feature: 0x06"][0]["Volatile Write Cache Enable (WCE)"], "Enabled");
        let all = json("get-feature", &[]);
        assert!(all["feature: 0x07"].is_array() && all["feature: 0x81"][0]["data"].is_string(), "{all}");
        assert_eq!(all.get("feature: 0x08"), None, "interrupts are none of fabrics' business");
    }
}

#[test]
fn whatever_a_target_offers_is_attached_and_detached() {
    let place = tempfile::tempdir().unwrap();
    let namespaces = ["one", "two"].map(|name| format!("{},size=8MiB", place.path().join(name).display()));
    let target = Target::serve(place.path(), &namespaces.each_ref().map(String::as_str));
    let initiator = Initiator::new(place.path());
    let port = target.port.to_string();
    let connect_all = || -> Vec<(Value, Value)> {
        let words = ["connect-all", "-a", "127.0.0.1", "-s", &port, "--via", "nbd", "-o", "json"];
        let attached: Value = serde_json::from_str(&initiator.succeed(&words)).unwrap();
        let attached = attached.as_array().unwrap().iter();
        attached.map(|one| (one["SubsystemNQN"].clone(), one["NameSpace"].clone())).collect()
    };
    let nqn = Value::from(target.nqn.clone());
    assert_eq!(connect_all(), [(nqn.clone(), json!(1)), (nqn.clone(), json!(2))]);
    assert_eq!(connect_all(), [], "it is attached already");

    let hosts: Value = serde_json::from_str(&initiator.succeed(&["list-subsys", "-o", "json"])).unwrap();
    let subsystems = hosts[0]["Subsystems"].as_array().unwrap();
    assert_eq!((subsystems.len(), &subsystems[0]["NQN"]), (1, &nqn));
    let paths = subsystems[0]["Paths"].as_array().unwrap();
    assert_eq!(
        (paths.len(), &paths[1]["State"], &paths[1]["Transport"]),
        (2, &json!("live"), &json!("rdma"))
    );
    let text = initiator.succeed(&["list-subsys"]);
    let path = format!(" rdma traddr=127.0.0.1,trsvcid={port} live");
    assert!(text.contains(&format!(" - NQN={}\n", target.nqn)) && text.matches(&path).count() == 2, "{text}");
    let host = initiator.succeed(&["show-hostnqn"]);
    assert!(text.contains(&format!("hostnqn={host}")), "{text}{host}");

    assert_eq!(initiator.succeed(&["disconnect-all"]).matches(" disconnected\n").count(), 2);
    assert_eq!((initiator.list(), connect_all().len()), (Vec::new(), 2));
    assert!(initiator.succeed(&["disconnect-all", "-o", "json"]).contains("Disconnected"));
    assert_eq!(initiator.succeed(&["list-subsys", "-o", "json"]), "[]\n");
    assert_ne!(initiator.succeed(&["gen-hostnqn"]), initiator.succeed(&["gen-hostnqn"]));
}
